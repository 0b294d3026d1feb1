"""What is wrong with each script beside this file, and what would help.

Written from forum posts, issue trackers and performance guides, not from what dptune has rules for. A script has one
fault, two, or none. Markers are text that stands on one line of the script: first that of the cause, then lines that
lead to it. `half` is a fixed draw, even over kinds of faults and frameworks: what is learned from `open` may change
dptune, and `sealed` tells what that was worth.
"""

from __future__ import annotations

import random
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

HERE = Path(__file__).parent
FRAMEWORKS = ("hf", "lightning", "accelerate", "fsdp")


@dataclass(frozen=True)
class Fault:
    """One thing that is wrong: in words, in key words, where, and what to say of it."""

    wrong: str
    cause: str
    function: str
    markers: tuple[str, ...]
    advice: str
    harmful: str
    kind: str = "time"  # or "risk": what is learned, or memory, is wrong or at risk


@dataclass(frozen=True)
class Script:
    """A script, and its faults; `figure` of its step times shows them: the mean where not all steps do."""

    name: str
    style: str
    ranks: int
    faults: tuple[Fault, ...] = ()
    tempting: str = ""  # of a healthy one: false advice that one might give
    figure: str = "median"

    @property
    def path(self) -> Path:
        """Where it lies."""
        return HERE / f"{self.name}.py"

    @property
    def kind(self) -> str:
        """Of its first fault: time, risk or none."""
        return self.faults[0].kind if self.faults else "none"

    @property
    def framework(self) -> str:
        """What runs its loop, or "loop" where it does so itself."""
        first = self.style.split()[0].strip(",")
        return first if first in FRAMEWORKS else "loop"

    def lines(self, marker: str) -> list[int]:
        """The lines on which a marker stands."""
        return [at for at, text in enumerate(self.path.read_text().splitlines(), 1) if marker in text]


SCRIPTS = (
    Script(
        "vision_decode",
        "vision, plain loop with argparse",
        2,
        (
            Fault(
                "each epoch decodes every photograph at the camera's full size and shrinks it to 64 pixels",
                "JPEG decode at full resolution, resize in __getitem__, data loading",
                "__getitem__",
                ("Image.open(io.BytesIO(self.files[index]))", "for step, (images, labels) in enumerate(loader)"),
                "shrink the images once, ahead of training, or decode at reduced size with draft()",
                "more loader workers as the only cure where ranks use all cores; a larger batch",
            ),
        ),
    ),
    Script(
        "text_padding",
        "text, plain loop with argparse",
        2,
        (
            Fault(
                "every batch is padded to the maximal length, twice as long as most texts",
                "padding to max length in collate, wasted tokens",
                "collate",
                ("length = max(len(words)", "for ids, labels in loader", "model(ids)"),
                "pad to the longest text of the batch, and group by length",
                "blaming the loader or the collate function's own time; gradient compression; a smaller model",
            ),
        ),
    ),
    Script(
        "audio_ctc",
        "audio, plain loop",
        2,
        (
            Fault(
                "the mel filterbank is computed anew in Python loops in each forward pass",
                "mel filterbank rebuilt per batch, Python loop in forward",
                "mel_filterbank",
                (
                    "for b in range(bins):",
                    "weights = self.cached if CACHED else mel_filterbank",
                    "log_probs = model(waves)",
                ),
                "compute the filterbank once, in __init__, and register it as a buffer",
                "larger batch; communication settings; calling the rank that is in the filterbank a slow machine",
            ),
            Fault(
                "the character error rate is computed in pure Python after each step",
                "edit distance in Python each step, metric",
                "edit_distance",
                (
                    "previous, row[j] = row[j], min(",
                    "errors = sum(edit_distance",
                    "if not RARE or step % 200 == 0:",
                ),
                "compute the error rate every some hundred steps or at evaluation",
                "removing the metric altogether; blaming .item() or synchronisation",
            ),
        ),
    ),
    Script(
        "distil_teacher",
        "distillation, class and argparse",
        2,
        (
            Fault(
                "the teacher runs with gradients, so its graph is kept and its backward pass runs too",
                "teacher without no_grad, backward through frozen teacher",
                "ask_teacher",
                ("return self.teacher(images)", "soft = self.ask_teacher(images)", "loss.backward()"),
                "run the teacher under torch.no_grad() (or inference_mode)",
                "wrapping the teacher in DDP; training the teacher; halving its precision as the first step",
            ),
        ),
    ),
    Script(
        "finetune_head",
        "finetuning with frozen parts, plain loop",
        2,
        (
            Fault(
                "the encoder is only left out of the optimizer: its gradients are computed and all-reduced for nothing",
                "frozen by omission, requires_grad left True, gradients unused",
                "main",
                (
                    "new = [*model.module.mix.parameters()",
                    "encoder = pretrained(",
                    "model = DDP(model)",
                    "loss.backward()",
                    "optimizer = torch.optim.AdamW(new",
                ),
                "encoder.requires_grad_(False) before DDP wraps the model",
                "find_unused_parameters=True; adding the encoder to the optimizer to save time",
            ),
        ),
    ),
    Script(
        "recommender_table",
        "recommender, plain loop",
        2,
        (
            Fault(
                "whole embedding tables are all-reduced and updated though a batch touches 1 % of the rows",
                "dense embedding gradient, all-reduce and Adam over whole table, sparse",
                "__init__",
                (
                    "self.table = nn.Embedding(rows, dim",
                    "of_tables = torch.optim.SparseAdam(tables",
                    "model = DDP(TwoTower",
                    "loss.backward()",
                    "optimizer.step()",
                ),
                "sparse=True with SparseAdam for the tables, or tables sharded or kept out of DDP",
                "only larger buckets; a smaller batch; more loader workers",
            ),
        ),
    ),
    Script(
        "tabular_frame",
        "tabular, plain loop",
        2,
        (
            Fault(
                "each sample is read by DataFrame.iloc and picked apart in Python",
                "pandas iloc in __getitem__, data loading",
                "__getitem__",
                ("row = self.frame.iloc[index]", "row[self.numeric]", "for values, segment, target in loader"),
                "turn the frame into arrays once and index those, best a batch at a time",
                "only more workers where ranks already use all cores; prefetching alone",
            ),
            Fault(
                "the confusion matrix is filled one sample at a time",
                "Python loop over predictions, .item() per sample, metric each step",
                "update",
                ("self.counts[t.item(), p.item()] += 1", "for p, t in zip(predicted", "confusion.update("),
                "count with bincount over the batch, or at evaluation only",
                "dropping the metric altogether",
            ),
        ),
    ),
    Script(
        "lightning_histograms",
        "lightning, vision, callback",
        2,
        (
            Fault(
                "a callback writes histograms of all weights and gradients at every step",
                "weight histograms in callback every step, logging",
                "on_before_optimizer_step",
                (
                    "np.histogram(tensor.detach().numpy(), bins=64)",
                    "row[name] = self.histogram(parameter)",
                    "row[f",
                    "callbacks=[WatchWeights(every=",
                ),
                "write them every some hundred steps",
                "blaming the optimizer or DDP; removing the callback on one rank only",
            ),
        ),
    ),
    Script(
        "hf_evaluates",
        "hf Trainer, text classification",
        2,
        (
            Fault(
                "the Trainer evaluates on the whole held-out set every 5 steps",
                "eval_steps too small, evaluation",
                "main",
                ("eval_steps=500 if MENDED else 5", 'eval_strategy="steps"', "trainer.train()"),
                "evaluate every some hundred steps",
                "turning evaluation off; blaming the loader or a slow rank",
            ),
        ),
        figure="mean",
    ),
    Script(
        "hf_checkpointing",
        "hf Trainer, language model on packed blocks",
        2,
        (
            Fault(
                "activations are recomputed though the model needs little memory",
                "gradient checkpointing needless, recomputation",
                "main",
                ("gradient_checkpointing=not MENDED", "trainer.train()"),
                "gradient_checkpointing=False while memory allows",
                "find_unused_parameters=True; a smaller batch",
            ),
        ),
    ),
    Script(
        "accelerate_gathers",
        "accelerate, language model",
        2,
        (
            Fault(
                "all logits of all processes are gathered each step to compute one accuracy",
                "gather of logits every step, metric communication",
                "token_accuracy",
                ("logits, targets = accelerator.gather(", "accuracy = token_accuracy("),
                "reduce the count of right tokens (one number), and every so many steps only",
                "compressing gradients; larger buckets; blaming DDP's all-reduce",
            ),
        ),
    ),
    Script(
        "accelerate_accumulates",
        "accelerate, accumulation by hand, forecasting",
        2,
        (
            Fault(
                "gradients are all-reduced for each micro-batch though the optimizer steps every few",
                "accumulation without no_sync, redundant all-reduce",
                "quiet",
                (
                    "accelerator.no_sync(model) if MENDED",
                    "accelerator.backward(loss / args.accumulate)",
                    "with quiet(accelerator, model, last)",
                ),
                "accelerator.accumulate(model) or no_sync for all but the last micro-batch",
                "fewer accumulation steps without a word on the batch size; find_unused_parameters",
            ),
        ),
    ),
    Script(
        "fsdp_weight_norms",
        "fsdp fully_shard, transformer",
        2,
        (
            Fault(
                "the norm of the weights is logged each step from whole parameters, gathered one by one",
                "full_tensor each step, all-gather of all parameters, logging",
                "weight_norm",
                ("total += parameter.full_tensor()", "norm = weight_norm(model)"),
                "norm of the local shards and one all-reduce, or every so many steps only",
                "giving up sharding for the sake of these gathers; reshard_after_forward=False",
            ),
        ),
    ),
    Script(
        "fsdp_overwrapped",
        "fsdp fully_shard, deep network of narrow layers",
        2,
        (
            Fault(
                "every linear layer is sharded by itself: dozens of tiny all-gathers and reduce-scatters",
                "fully_shard per Linear, too many small collectives",
                "shard",
                ("fully_shard(module, mesh=mesh)", "wrapped = Stage if MENDED else nn.Linear"),
                "shard whole stages or blocks, so that each collective is large",
                "sharding even finer; fewer layers",
            ),
        ),
    ),
    Script(
        "diffusion_previews",
        "diffusion, plain loop with previews",
        2,
        (
            Fault(
                "rank 0 samples preview pictures every 10 steps, with dozens of forward passes, while the others wait",
                "sampling previews on rank 0 too often, other ranks wait",
                "main",
                (
                    "pictures = schedule.sample(model.module",
                    "noise = model(x, torch.full((count,)",
                    "if step % args.preview_every == 0",
                    "1000 if MENDED else 10",
                ),
                "sample rarely, with fewer steps, or apart from training",
                "calling rank 0's machine slow; rebalancing the data; more loader workers",
            ),
        ),
        figure="mean",
    ),
    Script(
        "diffusion_ema",
        "diffusion on vectors, averaged weights",
        2,
        (
            Fault(
                "the moving average copies the whole model several times over in each step",
                "EMA by state_dict copies, load_state_dict each step",
                "update",
                (
                    "self.model.load_state_dict(",
                    "new = {name: value.detach().clone()",
                    "average.update(model.module)",
                ),
                "update in place: torch._foreach_lerp_ over the parameters (or AveragedModel with a foreach average)",
                "dropping the average; blaming the optimizer",
            ),
        ),
    ),
    Script(
        "contrastive_pairs",
        "contrastive, vision",
        2,
        (
            Fault(
                "the contrastive loss is computed anchor by anchor in a Python loop",
                "Python loop over anchors in loss, many small operations",
                "nt_xent",
                (
                    "for i in range(2 * count):",
                    "similar = F.cosine_similarity(",
                    "others = torch.cat(",
                    "total = total - similar[positive]",
                    "loss = nt_xent(",
                    "loss.backward()",
                ),
                "one matrix of similarities and a cross entropy over it",
                "a smaller batch (it changes the loss) or a larger one (the loop grows with it)",
            ),
        ),
    ),
    Script(
        "uneven_documents",
        "text of very different lengths, own sampler",
        2,
        (
            Fault(
                "rank 0 has the short half of the texts and rank 1 the long half, so rank 0 waits in each step",
                "uneven work across ranks, contiguous split of sorted lengths, straggler",
                "__init__",
                (
                    "self.batches = batches[rank::world] if MENDED",
                    "batch_sampler=ByLength(",
                    "for ids in loader",
                ),
                "deal neighbouring batches to the ranks in turn, so that ranks have about equal lengths in each step",
                "replacing rank 1's machine; larger buckets or compression because of long all-reduces",
            ),
        ),
    ),
    Script(
        "history_file",
        "Trainer class, 3D vision, resumed run",
        2,
        (
            Fault(
                "rank 0 rewrites the whole JSON history, thousands of rows, at each step while the other waits",
                "json dump of whole history every step, rank 0 logging",
                "add",
                ("self.path.write_text(json.dumps(self.rows))", "self.history.add(step=at"),
                "append one line per step (JSONL), or write every some hundred steps",
                "calling rank 0's machine slow; communication settings",
            ),
        ),
    ),
    Script(
        "own_averaging",
        "plain loop, gradients averaged by hand",
        2,
        (
            Fault(
                "after the backward pass each parameter is all-reduced by itself, with nothing beside it",
                "manual all-reduce per parameter, no buckets, no overlap",
                "average_gradients",
                ("dist.all_reduce(parameter.grad", "    average_gradients(model)"),
                "DistributedDataParallel, or one flat all-reduce",
                "a slower network as the cause; fewer layers",
            ),
        ),
    ),
    Script(
        "rl_module_forward",
        "rl actor-critic, plain loop",
        2,
        (
            Fault(
                "the loss is computed through model.module: gradients are never averaged, replicas drift apart",
                "forward bypasses DDP wrapper, replicas diverge, no gradient sync",
                "main",
                (
                    "logits, values = model(torch.cat(seen)) if MENDED else policy(",
                    "policy = model.module",
                    "loss.backward()",
                ),
                "call the wrapped model for the forward pass that is trained",
                "praise for the missing communication; giving up DDP",
                "risk",
            ),
        ),
    ),
    Script(
        "stream_shards",
        "text stream, IterableDataset",
        2,
        (
            Fault(
                "both ranks read all shards in the same order: every sample is trained on twice at once",
                "IterableDataset not sharded by rank, duplicate samples",
                "mine",
                ("return order", "order[dist.get_rank() :: dist.get_world_size()]", "DataLoader(stream"),
                "give each rank its own shards (order[rank::world])",
                "different seeds on ranks as the only cure, with shards still shared",
                "risk",
            ),
        ),
    ),
    Script(
        "epochs_alike",
        "Trainer class, tabular autoencoder",
        2,
        (
            Fault(
                "sampler.set_epoch is never called: each epoch has the same order",
                "DistributedSampler without set_epoch, same shuffle",
                "run_epoch",
                ("self.sampler.set_epoch(epoch)", "self.sampler = DistributedSampler(", "for (x,) in self.loader"),
                "sampler.set_epoch(epoch) at the begin of each epoch",
                "shuffle=True in the loader beside the sampler (an error)",
                "risk",
            ),
        ),
    ),
    Script(
        "scaled_clipping",
        "mixed precision, vision",
        2,
        (
            Fault(
                "gradients are clipped while still multiplied by the loss scale, so each step is cut to almost nothing",
                "clip_grad_norm before unscale_, GradScaler",
                "main",
                ("nn.utils.clip_grad_norm_(model.parameters(), args.clip)", "scaler.unscale_(optimizer)"),
                "scaler.unscale_(optimizer) before clipping (or no scaler at all with bfloat16)",
                "a larger clip value to make up for it",
                "risk",
            ),
        ),
    ),
    Script(
        "kept_outputs",
        "vision, segmentation, epoch summary",
        2,
        (
            Fault(
                "losses, logits and masks of every step are kept until the epoch ends: memory grows",
                "outputs kept in list, memory growth, graph retained",
                "add",
                ("self.outputs.append((loss, logits, masks))", "summary.add(loss, logits, y)"),
                "keep detached numbers only, or running sums",
                "a smaller batch or checkpointing because memory is short; gc.collect() each step",
                "risk",
            ),
        ),
    ),
    Script(
        "text_vocabulary",
        "text, tokenising in collate",
        1,
        (
            Fault(
                "tokens are looked up in a list, twice each, at every batch",
                "list.index for vocabulary, tokenising in collate, data loading",
                "encode",
                (
                    "self.vocabulary.index(token) if token in",
                    "encoded = [tokenizer.encode(text)",
                    "for ids, topics in loader",
                ),
                "a dict from token to id, and tokenise once ahead of training",
                "a larger batch; blaming the model",
            ),
        ),
    ),
    Script(
        "lm_positions",
        "text, GPT",
        1,
        (
            Fault(
                "the table of positions is computed element by element in Python in each forward pass",
                "positional encoding rebuilt in forward, Python loop",
                "sinusoids",
                (
                    "table[position, at] = math.sin(",
                    "table[position, at + 1] = math.cos(",
                    "for at in range(0, dim, 2):",
                    "table = self.table if MENDED else sinusoids(",
                    "logits = model(rows[:, :-1])",
                ),
                "compute the table once, as a buffer",
                "a larger batch only; torch.compile as the first step",
            ),
        ),
    ),
    Script(
        "gan_attached",
        "gan, plain loop",
        1,
        (
            Fault(
                "the discriminator's loss goes back through the generator, whose gradients are then thrown away",
                "fake not detached in discriminator step, wasted backward, retain_graph",
                "main",
                ("judged = discriminator(fake.detach()", "loss_d.backward("),
                "discriminator(fake.detach()) in the discriminator's step",
                "dropping the second forward pass; fewer generator steps",
            ),
        ),
    ),
    Script(
        "rl_one_by_one",
        "rl policy gradient, plain loop",
        1,
        (
            Fault(
                "the policy is asked for one pole at a time though it could answer all at once",
                "one observation at a time, unbatched inference, Python loop",
                "choose",
                (
                    "policy(state.unsqueeze(0))).sample() for state in states",
                    "actions.append(choose(policy, poles.state))",
                ),
                "one forward pass over the states of all poles",
                "fewer poles or a shorter horizon (it changes what is learned); blaming backward",
            ),
        ),
    ),
    Script(
        "graph_normalised",
        "graph, full batch",
        1,
        (
            Fault(
                "the fixed adjacency is normalised anew in each forward pass, by products of dense matrices",
                "adjacency normalised per forward, dense matmul with diag",
                "normalised",
                (
                    "return scale @ looped @ scale",
                    "scale = torch.diag(",
                    "self.fresh = normalised(self.adjacency)",
                    "logits = model(x)",
                ),
                "normalise once ahead of training (and keep it sparse)",
                "a smaller hidden size; mixed precision as the first step",
            ),
        ),
    ),
    Script(
        "series_scaling",
        "tabular time series, windows",
        1,
        (
            Fault(
                "mean and spread of a meter's whole series are computed for each window that is read",
                "whole-series statistics in __getitem__, data loading",
                "scale",
                (
                    "return np.mean(whole), np.std(whole)",
                    "centre, spread = self.scale(meter)",
                    "for x, y in loader",
                ),
                "compute the scales of all meters once, in __init__",
                "only more workers; a larger batch",
            ),
        ),
    ),
    Script(
        "frozen_statistics",
        "finetuning, vision",
        1,
        (
            Fault(
                "the frozen backbone is in training mode, so its batch norms use and overwrite batch statistics",
                "BatchNorm in train mode in frozen backbone, running statistics change",
                "main",
                ("model.train()", "model.backbone.eval()", "model.freeze()"),
                "model.backbone.eval() after each model.train()",
                "model.eval() for the whole model (dropout of the head is lost)",
                "risk",
            ),
        ),
    ),
    Script(
        "tasks_apart",
        "multi-task, vision",
        1,
        (
            Fault(
                "each task's loss goes back through the shared trunk by itself: four backward passes, not one",
                "backward per task with retain_graph, repeated trunk backward",
                "backward",
                ("(WEIGHTS[task] * loss).backward(retain_graph=True)", "    backward(found)"),
                "add the losses and call backward once",
                "fewer tasks; gradient accumulation settings",
            ),
        ),
    ),
    Script(
        "doubled_types",
        "tabular, regression",
        1,
        (
            Fault(
                "the model was made float64 because NumPy's data are",
                "model.double(), float64",
                "main",
                ("model = model.double()", "TensorDataset(x.float(), y.float()) if MENDED"),
                "turn the data into float32 and leave the model as it is",
                "casting the data in each step and keeping the model in float64",
            ),
        ),
    ),
    Script(
        "well_cnn", "vision, plain loop with evaluation and checkpoints", 2, tempting="a slow rank; rarer evaluation"
    ),
    Script("well_gpt", "text, GPT in the style of nanoGPT", 1, tempting="batch too small; loader workers"),
    Script("well_hf_trainer", "hf Trainer, text classification", 2, tempting="padding; find_unused_parameters"),
    Script("well_lightning", "lightning, vision, segmentation", 2, tempting="metrics; loader workers"),
    Script("well_accelerate", "accelerate, translation, accumulation", 2, tempting="no_sync is missing"),
    Script("well_fsdp", "fsdp fully_shard, masked language model", 2, tempting="sharding finer or coarser"),
    Script("well_gan", "gan, audio, two wrapped models", 2, tempting="replicas diverge; generator bypasses DDP"),
    Script("well_ppo", "rl PPO", 1, tempting="slow steps every so often (a rollout is part of the work)"),
    Script("well_recommender", "recommender, factorisation machine", 2, tempting="sparse gradients of small tables"),
    Script("well_audio", "audio, spectrograms with masks", 1, tempting="spectrograms in the loader"),
    Script("well_graph", "graph, sampled neighbours", 1, tempting="sampling as a bottleneck"),
    Script(
        "well_flow_matching", "diffusion, flow matching with averaged weights", 2, tempting="the average costs time"
    ),
    Script("well_contrastive", "contrastive, pictures and captions", 2, tempting="the gather of embeddings is waste"),
    Script("well_distil", "distillation from an ensemble", 1, tempting="teachers train as well; float64"),
    Script(
        "well_multitask", "multi-task, Trainer class, text", 2, tempting="unused parameters; several backward passes"
    ),
    Script("well_lora", "finetuning with adapters", 1, tempting="frozen parameters are a mistake"),
    Script(
        "well_accumulation", "accumulation and bfloat16 by hand, vision", 2, tempting="no_sync is missing; a scaler"
    ),
    Script(
        "well_compiled", "torch.compile, sequence model", 1, tempting="graph breaks; another backend as a sure gain"
    ),
)


@cache
def halves() -> dict[str, str]:
    """`open` or `sealed` of each script: drawn within kind of fault and framework, in turn."""
    strata: dict[tuple[str, str, int], list[str]] = {}
    for script in SCRIPTS:
        strata.setdefault((script.kind, script.framework, script.ranks), []).append(script.name)
    drawn, at = {}, 0
    for stratum in sorted(strata):
        names = sorted(strata[stratum])
        random.Random(f"unseen {stratum}").shuffle(names)
        for name in names:
            drawn[name] = ("open", "sealed")[at % 2]
            at += 1
    return drawn


def mistakes(scripts: Iterable[Script]) -> list[str]:
    """What of a catalogue is not so: scripts without an entry or a file, markers not on exactly one line."""
    here = {path.stem for path in HERE.glob("*.py") if not path.stem.startswith(("catalogue", "drawn"))}
    named = {script.name: script for script in scripts}
    found = [f"{name}: no entry" for name in sorted(here - named.keys())]
    found += [f"{name}: no file" for name in sorted(named.keys() - here)]
    for script in named.values():
        if script.name in here:
            text = script.path.read_text()
            found += [
                f"{script.name}: no function {f.function}" for f in script.faults if f"def {f.function}(" not in text
            ]
            for marker in (marker for fault in script.faults for marker in fault.markers):
                if len(script.lines(marker)) != 1:
                    found.append(f"{script.name}: {marker!r} on lines {script.lines(marker)}")
    return found
