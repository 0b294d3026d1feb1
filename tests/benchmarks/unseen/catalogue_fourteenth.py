"""The fourteenth draw of scripts, by two people who had seen neither rules nor results. Sealed as a whole.

What is wrong with each was drawn with the weights of the thirteenth draw (the number of public threads about a fault;
`catalogue_thirteenth.py` lists them, with a thread for each) by `random.Random("dptune fourteenth draw")` and its
`choices`: 14 that cost time, then 6 that put the result at risk; what is drawn a third time is drawn anew. In this
order (the number is the script's place below):

  time   replay memory of Python tuples (1), negative items drawn in Python loops (2), sharded parameters of a small
         model gathered again (3), tensors made of Python lists at each access (4), pictures decoded and resized again
         (5), activations checkpointed without need (6), text tokenised again in each epoch (7), batch put together in
         Python loops (8), validation without no_grad (9), frozen part with gradients (10), gradients reduced in each
         micro-batch (11), loss in a Python loop (12), anomaly detection left on (13), scores of the whole evaluation
         kept by the Hugging Face Trainer (14)
  risk   best weights kept by reference (15), gradients never cleared (16), no_sync over the last micro-batch (17),
         validation in training mode (18), view instead of transpose (19), epoch of the sampler never set (20)

Then eight healthy ones, most of them look-alikes of common faults.
"""

from __future__ import annotations

from catalogue import Fault, Script

FOURTEENTH = (
    Script(
        "heron_fishing",
        "rl double DQN, pond as arrays, plain loop",
        1,
        (
            Fault(
                "the replay memory is a deque of Python tuples of lists: each batch is picked one by one from the "
                "deque, turned by zip and made into tensors number by number",
                "replay memory of Python tuples in a deque, tensors made of lists",
                "sample",
                (
                    "picked = Moment(*zip(*random.sample(self.moments, batch), strict=True))",
                    "obs, after = torch.tensor(picked.obs), torch.tensor(picked.after)",
                    "reward, over = torch.tensor(picked.reward)",
                    "return obs, torch.tensor(picked.action), reward, after, over",
                    "self.moments.append(Moment(*row))",
                    "self.moments = deque(maxlen=size)",
                    "else Memory(20_000)",
                    "loss = learn(heron, slow, optimizer, memory.sample(args.batch), gamma=0.97)",
                ),
                "keep the memory in tensors (or arrays) that are allocated once, written in a circle and indexed by a "
                "whole batch",
                "a smaller memory or batch without a word; a smaller network; fewer herons",
            ),
        ),
    ),
    Script(
        "accelerate_evening_classes",
        "accelerate, recommender, two towers",
        2,
        (
            Fault(
                "classes that were not booked are drawn one at a time in Python, with a look-up in a set for each, in "
                "the collate function",
                "negative items drawn in Python loops",
                "not_booked",
                (
                    "while other in self.of_person[person]:",
                    "self.not_booked(p) for _ in range(self.others)",
                    "for people, courses in loader:",
                    "others = WithOthers(booked",
                    "shuffle=True, drop_last=True, collate_fn=others)",
                ),
                "draw for the whole batch at once, and draw again only those that hit a booked class",
                "loader workers as the whole cure where ranks use all cores; fewer negatives; no check for booked ones",
            ),
        ),
    ),
    Script(
        "fsdp_clock_repairs",
        "fsdp fully_shard, text classification",
        2,
        (
            Fault(
                "the layers of a small model are freed after the forward pass and gathered a second time in the "
                "backward pass, though memory has room for all of them",
                "reshard_after_forward left on for a small model, second all-gather",
                "shard_model",
                (
                    "fully_shard(module, mesh=mesh, reshard_after_forward=reshard_after_forward)",
                    "def shard_model(model, conditions, mesh, reshard_after_forward=True):",
                    "        shard_model(model, [is_layer], mesh)",
                    "            loss.backward()",
                ),
                "reshard_after_forward=False for the layers (or no sharding of the parameters at all: DDP)",
                "sharding finer; an all-gather in lower precision as the first step; a smaller model",
            ),
        ),
    ),
    Script(
        "pigeon_routes",
        "time series, convolutions and attention, plain loop",
        1,
        (
            Fault(
                "each access makes a tensor of lists of some thousand Python numbers, the same in each epoch",
                "tensors made of Python lists at each access",
                "track",
                (
                    "return torch.tensor([record[name] for name in CHANNELS])",
                    "else self.track(self.records[i])",
                    "for track, loft in loader:",
                    "loss = run_epoch(model, loader, optimizer, schedule)",
                ),
                "make the tensors (or arrays) once, in __init__",
                "loader workers as the whole cure; shorter tracks; a smaller model",
            ),
        ),
    ),
    Script(
        "door_knockers",
        "vision, two heads, DDP, Trainer class",
        2,
        (
            Fault(
                "each access reads a JPEG file, decodes it at the camera's size and shrinks it, the same in each epoch",
                "pictures decoded and resized at each access",
                "load",
                (
                    'picture = picture.convert("RGB").resize(',
                    "with Image.open(path) as picture:",
                    "else self.load(self.paths[i])",
                    "for picture, kind, age in self.loader:",
                ),
                "shrink all pictures once and keep them (small, as bytes), or save them small ahead of training",
                "no random shift or light; loader workers as the whole cure where ranks use all cores; a faster disk",
            ),
        ),
    ),
    Script(
        "storm_tracks",
        "weather, transformer rolled out, Trainer class",
        1,
        (
            Fault(
                "the blocks of the engine are checkpointed: each is computed again in the backward pass, though the "
                "activations of the small model need little memory",
                "activations checkpointed without need, recomputation",
                "forward",
                (
                    "tokens = checkpoint(block, tokens, use_reentrant=False)",
                    "engine_checkpoint: bool = not MENDED",
                    "self.checkpointed = c.engine_checkpoint",
                    "tokens = self.engine(tokens)",
                    "            loss.backward()",
                ),
                "no checkpointing while memory allows (engine_checkpoint=False)",
                "use_reentrant=True as the cure; fewer leads; a smaller batch",
            ),
        ),
    ),
    Script(
        "hf_wedding_speeches",
        "hf Trainer, text classification",
        1,
        (
            Fault(
                "each access cuts the text into word pieces again, in Python, the same in each epoch",
                "text tokenised again in each epoch, in __getitem__",
                "__getitem__",
                (
                    "else self.encode(self.rows[i])",
                    "def encode(self, text, most):",
                    "pieces = [piece for word in self.words(text) for piece in self.pieces(word)]",
                    "while end > start and (piece :=",
                    "train = Speeches(texts[:-80]",
                    "        ).train()",
                ),
                "tokenise all texts once before training (or once with a fast tokenizer, in batches)",
                "loader workers as the whole cure; shorter texts; padding to a fixed length",
            ),
        ),
    ),
    Script(
        "tourist_questions",
        "text, policy gradient on kept answers, DDP, plain loop",
        2,
        (
            Fault(
                "a batch is put together word by word: thousands of single elements of tensors are written in Python",
                "batch put together in Python loops, element by element",
                "in_one",
                (
                    "ids[i, left + j] = answer[j]",
                    "for j in range(len(answer)):",
                    "for j in range(len(question)):",
                    "ids[i, start + j] = question[j]",
                    "mask[i, start + j] = 1",
                    "mask[i, left + j] = 1",
                    "of_answer[i, j] = 1",
                    "gain[i, j] = value[j]",
                    "ids, mask, of_answer, gain = in_one(",
                ),
                "write whole rows by slices (or pad_sequence), and make masks by comparing columns with lengths",
                "loader workers as the whole cure; shorter answers; filling up all answers to the same length",
            ),
        ),
    ),
    Script(
        "lightning_spinning_tops",
        "lightning, learnt equation of motion, Runge-Kutta",
        1,
        (
            Fault(
                "a hook of training rolls out long films every fifth step, with gradients: the graph of some ten "
                "thousand small operations is built and thrown away",
                "validation in a training hook without torch.no_grad()",
                "long_runs",
                (
                    "guess = run(self.motion, states[:, 0], build, states.shape[1] - 1)",
                    "if MENDED else self.long_runs()",
                    "def on_train_batch_end(self, outputs, batch, batch_idx):",
                    "errors.append((guess - states[:, 1:]).abs().mean())",
                    "trainer.fit(model",
                ),
                "run it under torch.no_grad() (or as validation_step, where Lightning does so); and more rarely",
                "self.motion.eval() as the cure (it is there); no check of long runs; the same for training_step",
            ),
        ),
        figure="mean",
    ),
    Script(
        "accelerate_sleep_waves",
        "accelerate, brain waves, probe on a trained encoder",
        1,
        (
            Fault(
                "requires_grad is set on the encoder as a module, which does nothing: gradients of all its weights are "
                "computed in each step, are summed up and never used",
                "frozen part still has gradients: module.requires_grad = False",
                "freeze",
                (
                    "module.requires_grad = False",
                    "self.encoder = freeze(pretrained(dim, depth))",
                    "accelerator.backward(loss)",
                    "optimizer = torch.optim.AdamW(model.own()",
                ),
                "module.requires_grad_(False), which reaches the parameters",
                "the encoder under torch.no_grad() (channels before it would not learn); training the encoder as well",
            ),
        ),
    ),
    Script(
        "organ_stops",
        "audio, conformer, accumulation, DDP, Trainer class",
        2,
        (
            Fault(
                "no_sync is around the backward pass alone: DDP decides in the forward pass, so that gradients are "
                "reduced in each of four micro-batches",
                "no_sync around backward alone, gradients reduced in each micro-batch",
                "micro_step",
                (
                    "with self.quiet(last):",
                    "loss = self.loss() / self.s.accumulate",
                    "            loss.backward()",
                    "total += self.micro_step(",
                    "return contextlib.nullcontext() if last else self.model.no_sync()",
                    "self.model = DDP(",
                ),
                "forward and backward of all micro-batches but the last within no_sync",
                "fewer micro-batches without a word on the batch; smaller or larger buckets alone; no_sync in all",
            ),
        ),
    ),
    Script(
        "lightning_onion_cells",
        "lightning, vision, instances by vectors, DDP",
        2,
        (
            Fault(
                "the loss goes over slides, cells and pairs of cells in Python, with some small operations for each, "
                "thousands in the graph",
                "loss in Python loops over samples, cells and pairs",
                "of_slide",
                (
                    "pushed = pushed + F.relu(2 * self.push - (means[i] - means[j]).norm()).square()",
                    "for j in range(i + 1, len(means)):",
                    "for i in range(len(means)):",
                    "for number in range(1, int(cells.max()) + 1):",
                    "inside = vectors[:, cells == number]",
                    "far = (inside - mean[:, None]).norm(dim=0)",
                    "pulled = pulled + F.relu(far - self.pull).square().mean()",
                    "return torch.stack([self.of_slide(v, c) for v, c",
                    "return self.grouping(self.net(slide), cells)",
                ),
                "sums by cell over the batch at once (one-hot or index_add), and all pairs by one difference",
                "fewer cells; no term for pairs; .item() or int() of the number of cells as the whole cause",
            ),
        ),
    ),
    Script(
        "bottle_ships",
        "radiance field, coarse and fine network, plain loop",
        1,
        (
            Fault(
                "each step runs under detect_anomaly: each forward operation records a Python traceback, and the "
                "result of each backward operation is searched for NaN",
                "anomaly detection left on, as a context around each step",
                "guarded",
                (
                    "else torch.autograd.detect_anomaly()",
                    "with guarded():",
                    "first, second = model(start[rows], aim[rows])",
                    "            loss.backward()",
                ),
                "leave anomaly detection off (on only for the steps in which a NaN is looked for)",
                "fewer points or rays; a smaller network; torch.autograd.gradcheck in its place",
            ),
        ),
    ),
    Script(
        "hf_station_announcements",
        "hf Trainer, language model, GPT-2",
        2,
        (
            Fault(
                "the Trainer keeps, gathers and joins the scores of all words at all places of the whole evaluation, "
                "every few steps, though the metric needs the likeliest word alone",
                "scores of the whole evaluation kept: no preprocess_logits_for_metrics",
                "__init__",
                (
                    "preprocess_logits_for_metrics=likeliest if MENDED else None",
                    "compute_metrics=accuracy",
                    "found = found.argmax(-1)",
                    "self.trainer.train()",
                    "eval_steps=6",
                ),
                "preprocess_logits_for_metrics that returns argmax(-1); and evaluate more rarely",
                "prediction_loss_only without a word (the metric is lost); eval_accumulation_steps as the cure; no "
                "evaluation",
            ),
        ),
        figure="mean",
    ),
    Script(
        "avalanche_slopes",
        "time series over snow layers, gated convolutions, Trainer class",
        1,
        (
            Fault(
                "the best weights are kept as detached views of the weights themselves: on a CPU .cpu() copies "
                "nothing, so they go on changing in training, and the restored ones are just the last ones",
                "best weights kept by reference, no copy of the state_dict",
                "offer",
                (
                    "weights = {name: value.detach().cpu() for name, value",
                    "self.weights = copy.deepcopy(weights) if MENDED else weights",
                    "self.best.offer(self.model, error, step)",
                    "self.best.restore(self.model)",
                    "model.load_state_dict(self.weights)",
                ),
                "copy the weights: value.detach().clone() (or copy.deepcopy of the state_dict, or save them to a file)",
                "dict(state_dict) or .copy() as the cure (copies no tensor); checking less often; no early choice",
                kind="risk",
            ),
        ),
    ),
    Script(
        "lightning_kelp_beds",
        "lightning, segmentation, U-Net, manual optimization",
        1,
        (
            Fault(
                "with manual optimization the gradients are cleared once, at the start of an epoch: each step also "
                "goes along the gradients of all former batches of the epoch",
                "gradients cleared once an epoch, zero_grad missing in the step",
                "on_train_epoch_start",
                (
                    "                optimizer.zero_grad()",
                    "def on_train_epoch_start(self):",
                    "def learn(self, loss):",
                    "self.manual_backward(loss)",
                    "            optimizer.step()",
                    "self.learn(loss)",
                    "each.zero_grad()",
                ),
                "clear the gradients of both optimizers in each step (before the backward pass or after the step)",
                "a smaller learning rate; clipping as the cure; clearing in each epoch's end; retain_graph",
                kind="risk",
            ),
        ),
    ),
    Script(
        "morse_keys",
        "audio, CTC, GRU, accumulation, DDP, Trainer class",
        2,
        (
            Fault(
                "the ranks exchange gradients in the first micro-batch of a group, and not in the last one, after "
                "which the optimizer steps: each rank steps along its own sum, and their weights drift apart",
                "no_sync over the last micro-batch, wrong index",
                "exchange",
                (
                    "done = batch_idx + 1 if MENDED else batch_idx",
                    "if done % self.s.accumulate == 0:",
                    "return self.model.no_sync()",
                    "with self.exchange(batch_idx):",
                    "loss.backward()",
                    "self.optimizer.step()",
                ),
                "leave no_sync in the last micro-batch of a group: (batch_idx + 1) % accumulate == 0",
                "no_sync over all micro-batches; averaging weights at times; find_unused_parameters; larger buckets",
                kind="risk",
            ),
        ),
    ),
    Script(
        "accelerate_fossil_shelves",
        "accelerate, vision, convolutional stem and attention",
        1,
        (
            Fault(
                "the model's own train() does not pass its mode on, so eval() sets training mode: dropout is active in "
                "validation, and batch norm uses, and learns, the statistics of the validation batches",
                "validation in training mode, train(mode) overridden without mode",
                "train",
                (
                    "return super().train()",
                    "def train(self, mode=True):",
                    "    model.eval()",
                    "score = model(photo)",
                    "held, right = validate(accelerator",
                ),
                "return super().train(mode)",
                "another eval() call (does the same); no dropout; torch.no_grad() as the cure; a larger check batch",
                kind="risk",
            ),
        ),
    ),
    Script(
        "hf_caravan_routes",
        "hf Trainer, time series, encoder with legs first",
        1,
        (
            Fault(
                "reshape is used to put legs before routes: the numbers stay where they are, so attention looks at "
                "legs of several routes, and never at all legs of its own",
                "reshape instead of transpose, samples of a batch are mixed",
                "swapped",
                (
                    "return x.reshape(inner, outer, dim)",
                    "return swapped(self.layers(swapped(x)))",
                    "days = self.out(self.encoder(x)).squeeze(2)",
                    "trainer.train()",
                ),
                "x.transpose(0, 1), or batch_first=True without any swap",
                "batch_first=True with the swaps left in; contiguous() or view as the cure; a larger batch",
                kind="risk",
            ),
        ),
    ),
    Script(
        "fsdp_ledger_entries",
        "fsdp fully_shard, text classification",
        2,
        (
            Fault(
                "the DistributedSampler is inside a BatchSampler, which is what loader.sampler gives: the check of its "
                "type fails silently, set_epoch is never called, and each epoch has the same batches in the same order",
                "epoch of the DistributedSampler never set",
                "start_epoch",
                (
                    "sampler = loader.sampler.sampler if MENDED else loader.sampler",
                    "if isinstance(sampler, DistributedSampler):",
                    "sampler.set_epoch(epoch)",
                    "        start_epoch(loader, epoch)",
                    "sampler=BatchSampler(mine, batch",
                ),
                "call set_epoch of the inner sampler (loader.sampler.sampler) in each epoch",
                "shuffle=True in the loader (each rank would see any row); another seed for each rank; no shuffling",
                kind="risk",
            ),
        ),
    ),
    Script(
        "sundial_readings",
        "time series, attention, plain loop",
        1,
        tempting="dropout active in a check (Monte Carlo, meant so, after the plain pass); several passes (are few); "
        "best weights kept in memory (are clones); zero_grad after the step",
    ),
    Script(
        "harpsichord_tuning",
        "audio, convolutions, accumulation, DDP, Trainer class",
        2,
        tempting="no no_sync (require_backward_grad_sync does it, on in the last micro-batch); gradients cleared at "
        "the start of a group; a short last group (divided by its length); set_epoch of an inner sampler",
    ),
    Script(
        "hf_bus_notices",
        "hf Trainer, text, several labels, BERT",
        2,
        tempting="padding (most notices are cut to the same length); its own compute_loss (once, no accumulation); "
        "scores of the evaluation kept (are eight a notice)",
    ),
    Script(
        "lightning_ember_gan",
        "lightning, gan, relativistic loss, manual optimization",
        1,
        tempting="zero_grad in a helper (is there for both); two generator passes and real pictures scored twice (the "
        "expert has stepped between); detach (no_grad does it); toggling",
    ),
    Script(
        "accelerate_trail_cameras",
        "accelerate, vision, mixer, accumulation",
        2,
        tempting="zero_grad and step in each micro-batch (Accelerate skips them); a loader that is not prepared (each "
        "rank has its batches); no set_epoch (counts its passes); transposes; a schedule that is not prepared",
    ),
    Script(
        "fsdp_folk_tales",
        "fsdp fully_shard, language model, accumulation",
        2,
        tempting="gradients not reduced in the first micro-batch (meant so); reshard off; a generator for each rank; "
        "no sampler; no place embeddings (are rotated)",
    ),
    Script(
        "vole_burrows",
        "rl double DQN, burrows as tensors, plain loop",
        1,
        tempting="the slow network follows in each step (a hundredth of the way, by foreach); three passes (are "
        "needed); a round that is broken off is no end (its target goes on)",
    ),
    Script(
        "canal_barges",
        "time series, patches, plain loop",
        1,
        tempting="reshape of locks into the batch (after a transpose, and undone in the same order); scaling by the "
        "window (its past alone); validation windows at every 48th hour; loss summed (is detached)",
    ),
)
