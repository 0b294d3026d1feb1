"""The tenth draw of scripts, by someone who had seen neither rules nor results. Sealed as a whole.

Faults were listed from what people hit in forums, issue trackers, performance guides and code review; the weight is how
many of some 350 such reports one would expect to be about it (79 entries). What only waits (no loader workers, slow
disks or links) is left out: shares were to be measured in processor time. Drawn with `random.Random("dptune tenth
draw")` and its `choices`, in the order of the lists below: 14 that cost time, then 6 that put the result at risk; what
is drawn a third time is drawn anew. In this order (the number is the script's place below):

  time   metric over the whole history each step (1), environment and policy asked one by one (2), rank 0 evaluates
         while others wait (3), frozen part keeps its gradients (4), optimizer written by hand or foreach off (5),
         large buffers broadcast each forward (6), prototypes or clusters of all data each step (7), checkpoint
         written every few steps (8), every layer a group of fully_shard (9), each gradient reduced on its own (10),
         attention weights asked for and not used (11), each gradient reduced on its own again (12), negatives by
         rejection in Python (13), statistics of the data computed again for each sample or batch (14)
  risk   each rank sees all the data (15), labels shifted twice (16), held-out data in the statistics (17), labels
         shifted twice again (18), schedule at the wrong pace (19), padding counted (20)

Then ten healthy ones. Sizes are drawn by the seed between values at which a fault of time costs 12 to 60 % of the
processor time of a step.

  weights of time
  9 pictures prepared at full size each access; 8 text tokenised by Python each access
  7 held-out set gone through every few steps; 7 metric over the whole history each step
  7 checkpoint written every few steps; 6 a loop over the batch in forward; 6 a loop over time steps or cells
  6 everything padded to the longest of the data; 6 frozen part keeps its gradients
  6 frozen features computed again each epoch; 6 filterbank or window made for each sample
  6 statistics of the data computed again for each sample or batch; 6 graph operator made anew each step
  6 collate by lists of numbers; 5 detect_anomaly left on; 5 hooks left on that collect statistics
  5 gradients or weights described one by one each step; 5 average of weights by state_dict and copies
  5 confusion matrix counted in Python; 5 attention weights asked for and not used; 5 logits at positions not used
  5 negatives by rejection in Python; 5 replay kept as Python tuples; 5 environment and policy asked one by one
  5 generation without a cache of keys; 5 optimizer written by hand or foreach off
  5 two forward passes where one would do; 4 returns or advantages by nested loops
  4 pixels or points changed in a Python loop; 4 gradient penalty at every step
  4 group-by or search in a frame for each sample; 4 whole data permuted and copied each step
  4 each gradient reduced on its own; 4 no_sync missing in accumulation; 4 find_unused_parameters not needed
  4 metrics gathered as objects; 4 large buffers broadcast each forward; 4 rank 0 evaluates while others wait
  4 ranks get batches of unequal length; 4 every layer a group of fully_shard
  4 parameters gathered again for each micro-batch; 4 full state gathered every few steps
  4 gradients sent by a hook in Python or twice; 4 double precision; 4 checkpointing of activations not needed
  4 loss over pairs or classes in Python; 3 buckets of DDP too small; 3 distances by broadcasting all differences
  3 one-hot product instead of a look-up; 3 channels or heads in a loop; 3 dense gradients of a large table
  3 exact decomposition each step; 3 prototypes or clusters of all data each step
  3 sort or nonzero of everything where a top few do; 3 teacher with gradient
  weights of risk
  7 each rank sees all the data; 6 set_epoch missing; 6 eval mode kept; 5 softmax or sigmoid twice
  5 gradients never or wrongly zeroed; 5 accumulated loss not divided; 4 schedule at the wrong pace
  4 parameters not in the optimizer; 4 ranks or workers draw the same chance; 4 shapes broadcast in the loss
  4 held-out data in the statistics; 4 forward past DDP; 4 padding counted; 4 target or generator not detached
  3 gradients clipped out of place; 3 a rank decides alone; 3 metric of one rank taken for all
  3 resumed without optimizer or schedule; 3 end of an episode not regarded; 3 future in the inputs
  3 labels shifted twice; 3 parameters added after the wrap; 2 data changed in place; 2 sorted data not shuffled
"""

from __future__ import annotations

from catalogue import Fault, Script

TENTH = (
    Script(
        "beach_litter",
        "vision, multi-label, plain loop",
        1,
        (
            Fault(
                "the mean average precision of all that was seen in the epoch is computed anew in each step: all "
                "scores are joined and sorted, more of them each time, though it is printed every ten steps",
                "a metric over the whole history computed each step",
                "compute",
                (
                    "return average_precision(torch.cat(self.scores), torch.cat(self.labels))",
                    "shown = precision.compute()",
                    "if not MENDED or last:",
                    "order = scores.argsort(0, descending=True)",
                    "hits = labels.gather(0, order)",
                    "precision.update(logits.detach().sigmoid(), y)",
                ),
                "compute it at the end of an epoch (or where it is printed)",
                "loss.item() as the cause; leaving the metric out without a word; a smaller batch; loader workers",
            ),
        ),
        figure="mean",
    ),
    Script(
        "crane_swings",
        "rl PPO, own environment",
        1,
        (
            Fault(
                "the policy is asked for one environment after the other: four forward passes of one row in each "
                "step of the rollout",
                "policy called once for each environment",
                "act_for_each",
                (
                    "picked = [policy.act(torch.from_numpy(one)) for one in obs]",
                    "action, logp, value = choose(policy, obs)",
                    "choose = act_together if MENDED else act_for_each",
                    "return Normal(self.mean(h).squeeze(-1)",
                    "batch, obs = collect(policy, envs, obs, cfg)",
                    "action = dist.sample()",
                ),
                "stack the observations and ask the policy once for all environments",
                "a smaller network; fewer environments; the loop over time of the advantages as the cause",
            ),
        ),
    ),
    Script(
        "hymn_tunes",
        "text, plain loop, GRU",
        2,
        (
            Fault(
                "after every eighth step rank 0 goes through all held-out hymns alone, while the other rank waits at a "
                "barrier",
                "evaluation on rank 0 alone every 8 steps",
                "look_at_held_out",
                (
                    "seen = score(ddp.module, DataLoader(held_out, batch))",
                    "        dist.barrier()",
                    "loss, right, count = look_at_held_out(",
                    "if step % args.look_every == 0:",
                    '"--look-every", type=int, default=8',
                    "logits = model(words)",
                ),
                "each rank evaluates its share, and the sums are added by all_reduce; or evaluate more seldom",
                "removing the barrier alone (the others wait in the next backward pass); a smaller batch",
            ),
        ),
        figure="mean",
    ),
    Script(
        "hf_charter_seals",
        "hf Trainer, sequence classification, head alone trained",
        2,
        (
            Fault(
                "only the head is given to the optimizer, but the parameters of the encoder still require gradients: "
                "the backward pass goes through all of it, and its gradients are reduced over the ranks",
                "a frozen encoder whose parameters require gradients",
                "main",
                (
                    "optimizer = torch.optim.AdamW(head_parameters(model)",
                    "p.requires_grad_(id(p) in trained)",
                    "return [*model.classifier.parameters(), *model.bert.pooler.parameters()]",
                    "trainer.train()",
                    "optimizers=(optimizer, schedule)",
                ),
                "requires_grad_(False) for the encoder (or no_grad around it)",
                "training the encoder too, without a word; find_unused_parameters; another bucket size as the cure",
            ),
        ),
    ),
    Script(
        "perfume_notes",
        "recommender, two towers, plain loop",
        1,
        (
            Fault(
                "AdamW is written out with some fifteen operations, each of which makes a new tensor as large as the "
                "table",
                "an optimizer written in Python, out of place, over large tables",
                "step",
                (
                    'state["v"] = beta2 * state["v"] + (1 - beta2) * grad * grad',
                    'state["m"] = beta1 * state["m"] + (1 - beta1) * grad',
                    'm_hat = state["m"] / (1 - beta1 ** state["step"])',
                    'v_hat = state["v"] / (1 - beta2 ** state["step"])',
                    'update = m_hat / (torch.sqrt(v_hat) + group["eps"])',
                    'p.data = p.data - group["lr"] *',
                    "return WrittenAdamW(model.parameters(), lr=lr)",
                    "        optimizer.step()",
                ),
                "torch.optim.AdamW (fused=True)",
                "sparse gradients with AdamW (it takes none); another learning rate; a larger batch",
            ),
        ),
    ),
    Script(
        "stage_costumes",
        "retrieval, Trainer class, transformer encoder",
        2,
        (
            Fault(
                "the features of the wardrobe (over 40 MB, never changed) are a buffer, and DDP broadcasts buffers "
                "from rank 0 before each forward pass",
                "a large constant buffer is broadcast in each forward pass",
                "__init__",
                (
                    "self.model = DistributedDataParallel(model, broadcast_buffers=not MENDED)",
                    'self.register_buffer("wardrobe", wardrobe)',
                    "scores = self.model(words, candidates)",
                ),
                "broadcast_buffers=False (the buffer is constant and the same on all ranks)",
                "larger buckets or no_sync as the cure; fewer costumes; not moving the buffer with the model",
            ),
        ),
    ),
    Script(
        "shell_kinds",
        "vision, self-supervised, plain loop",
        1,
        (
            Fault(
                "after each step the whole bank of embeddings is clustered again, four rounds of k-means",
                "k-means over all embeddings each step",
                "refresh",
                (
                    "self.nearest = (self.bank @ self.centres.T).argmax(1)",
                    "sums = torch.zeros_like(self.centres).index_add_(",
                    "            if not MENDED:",
                    "for _ in range(self.rounds):",
                    "self.centres = F.normalize(sums, dim=1)",
                ),
                "cluster once an epoch (or every so many steps)",
                "a smaller batch; fewer clusters without a word; loader workers",
            ),
        ),
    ),
    Script(
        "lightning_brick_marks",
        "lightning, vision, mixer",
        1,
        (
            Fault(
                "ModelCheckpoint writes model and optimizer after every third step",
                "checkpoint every 3 steps",
                "main",
                (
                    "keep = ModelCheckpoint(",
                    "callbacks=[keep]",
                    "trainer.fit(model, data)",
                ),
                "write more seldom (each epoch, or by time: train_time_interval)",
                "no checkpoints; a smaller model; gradient clipping as the cause",
            ),
        ),
        figure="mean",
    ),
    Script(
        "fsdp_postcards",
        "fsdp fully_shard, language model",
        2,
        (
            Fault(
                "every linear layer and norm is a group of its own: over 40 all-gathers and reduce-scatters of small "
                "tensors instead of 5",
                "fully_shard on every layer",
                "shard",
                (
                    "            fully_shard(module)",
                    "kinds = (Block,) if MENDED else (nn.Linear, nn.RMSNorm, Block)",
                    "for module in reversed(list(model.modules())):",
                    "return fully_shard(model)",
                    "        if isinstance(module, kinds):",
                    "loss.backward()",
                ),
                "fully_shard on each block and on the model",
                "no sharding as if memory were free; clipping as the cause; a smaller batch",
            ),
        ),
    ),
    Script(
        "moss_species",
        "vision, plain loop, DenseNet, gradients averaged by hand",
        2,
        (
            Fault(
                "gradients are averaged after the backward pass with an all_reduce for each of some 100 small tensors",
                "one all_reduce for each parameter",
                "average_gradients",
                (
                    "dist.all_reduce(param.grad, op=dist.ReduceOp.SUM)",
                    "for param in model.parameters():",
                    "            average_gradients(model)",
                    "param.grad /= size",
                ),
                "DistributedDataParallel (buckets, during backward), or one all_reduce of the flattened gradients",
                "leaving out the averaging; averaging every other step as the same training",
            ),
        ),
    ),
    Script(
        "fog_banks",
        "time series, plain loop, transformer",
        1,
        (
            Fault(
                "nn.MultiheadAttention gives back the attention weights by default, which nobody uses: they are "
                "written out, and the fused attention is not taken",
                "need_weights left on",
                "forward",
                (
                    "            y, _ = self.attention(y, y, y)",
                    "y, _ = self.attention(y, y, y, need_weights=False)",
                    "self.attention = nn.MultiheadAttention(dim, heads, batch_first=True)",
                    "loss = F.binary_cross_entropy_with_logits(model(x), fog.float())",
                    "return self.head(self.blocks(",
                    "loss.backward()",
                ),
                "need_weights=False",
                "a shorter window; fewer heads; loader workers; lower precision as the first thing",
            ),
        ),
    ),
    Script(
        "tapestry_gan",
        "gan, plain loop, gradients reduced by hooks",
        2,
        (
            Fault(
                "a hook of each parameter reduces its gradient at once, and waits for it: one small all_reduce after "
                "the other in the backward pass of both networks",
                "one all_reduce for each parameter, in hooks",
                "average",
                (
                    "        dist.all_reduce(param.grad)",
                    "param.register_post_accumulate_grad_hook(average)",
                    "param.grad.div_(dist.get_world_size())",
                    "loss.backward(inputs=list(model.parameters()))",
                    "reduce_as_they_come(gen)",
                    "reduce_as_they_come(disc)",
                ),
                "DistributedDataParallel (buckets), or one all_reduce of the flattened gradients",
                "leaving the hooks out (the ranks would go apart); spectral norm as the cause",
            ),
        ),
        figure="mean",
    ),
    Script(
        "pollinator_links",
        "graph, link prediction, plain loop",
        1,
        (
            Fault(
                "the negatives of a batch are drawn one by one in Python, and looked up in a set of pairs",
                "negatives drawn by rejection in a Python loop",
                "one_by_one",
                (
                    "while (i, flower) in self.known:",
                    "for i in insect.tolist():",
                    "found.append(flower)",
                    "return torch.tensor(found)",
                    "other = negative(insect.repeat(cfg.negatives))",
                    "return self.at_once(insect) if MENDED else self.one_by_one(insect)",
                ),
                "draw all at once with torch.randint, look them up with searchsorted, draw again those that are known",
                "known pairs as negatives without a word; fewer negatives; a sampled graph as the cure",
            ),
        ),
    ),
    Script(
        "accelerate_tree_rings",
        "accelerate, series, convolutions",
        2,
        (
            Fault(
                "the mean and deviation of the whole data are computed again for each sample",
                "statistics of the whole data in __getitem__",
                "standardise",
                (
                    "mean, std = self.reference.mean((0, 2)), self.reference.std((0, 2))",
                    "return torch.from_numpy(self.standardise(self.cores[i]))",
                    "for core, site, age in train_loader:",
                    "return (core - mean[:, None])",
                ),
                "compute them once in __init__",
                "statistics of the sample instead; leaving out standardisation; loader workers as the whole cure",
            ),
        ),
    ),
    Script(
        "railway_signs",
        "vision, plain loop, residual network",
        2,
        (
            Fault(
                "each rank goes through all the data, in an order by the same seed: both see the same samples, and "
                "the second rank adds nothing",
                "DataLoader(shuffle=True) without DistributedSampler",
                "make_loaders",
                (
                    "train_loader = DataLoader(train, args.batch, shuffle=True",
                    "order = torch.Generator().manual_seed(args.seed)",
                    "sampler = DistributedSampler(train, seed=args.seed)",
                    "for step, (image, sign) in enumerate(train_loader):",
                    "sampler = None",
                ),
                "DistributedSampler, with set_epoch",
                "another seed on each rank as the whole cure (samples are still seen twice an epoch)",
                kind="risk",
            ),
        ),
    ),
    Script(
        "hf_weather_bulletins",
        "hf Trainer, causal language model",
        1,
        (
            Fault(
                "labels are already the next words, and the model shifts them again: it learns the word after next",
                "labels shifted by the data set and by the model",
                "__getitem__",
                (
                    "targets = inputs if MENDED else",
                    '"labels": targets}',
                    "model = LlamaForCausalLM(config)",
                    "trainer.train()",
                ),
                "labels the same as input_ids",
                "shifting the inputs too; a loss of one's own on top; leaving the labels out",
                kind="risk",
            ),
        ),
    ),
    Script(
        "market_pears",
        "time series, class that fits, MLP",
        1,
        (
            Fault(
                "the scaler takes least and greatest price of all days, also of those held out for the test",
                "scaler fitted on all days before the split",
                "__init__",
                (
                    "self.scaler = MinMaxScaler().fit(",
                    "self.low, self.high = values.min(1",
                    "scaled = self.scaler.transform(series)",
                    "self.test = Lags(scaled[:, cut - settings.lags :], settings)",
                ),
                "fit the scaler on the days of training alone",
                "shuffling before the split; another scaler as the cure",
                kind="risk",
            ),
        ),
    ),
    Script(
        "fsdp_sailor_knots",
        "fsdp fully_shard, decoder whose forward gives the loss",
        2,
        (
            Fault(
                "the data set gives the moves that come next as labels, and forward shifts them once more: it learns "
                "the move after next",
                "labels shifted by the data set and by forward",
                "forward",
                (
                    "shift_logits, shift_labels = logits[:, :-1], labels[:, 1:]",
                    "return moves[:-1], moves[:-1] if MENDED else moves[1:]",
                    "return F.cross_entropy(shift_logits.flatten(0, 1)",
                    "loss = model(moves, labels)",
                ),
                "shift once: the moves as labels, or no shift in forward",
                "no causal mask; ignoring more positions",
                kind="risk",
            ),
        ),
    ),
    Script(
        "accelerate_swallows",
        "accelerate, audio, CRNN",
        2,
        (
            Fault(
                "a prepared schedule makes a step for each process, and its length is counted in steps of one: the "
                "learning rate is zero after half of the training",
                "a schedule prepared by Accelerate, its length in steps of one process",
                "main",
                (
                    "scheduler = accelerator.prepare(scheduler)",
                    "total = args.epochs * len(loader)",
                    "scheduler = LambdaLR(",
                    "scheduler.step()",
                    "total *= accelerator.num_processes",
                ),
                "total steps times num_processes, or do not prepare the schedule (or step_scheduler_with_optimizer)",
                "no schedule; more epochs; a higher rate as the cure",
                kind="risk",
            ),
        ),
    ),
    Script(
        "proverb_words",
        "text, tagging, plain loop, LSTM",
        1,
        (
            Fault(
                "padding counts in the loss, and as right in the accuracy: most positions of a batch are padding, "
                "which the model soon knows",
                "cross entropy over padding",
                "tag_loss",
                (
                    "ignored = PAD if MENDED else -100",
                    "return F.cross_entropy(logits.flatten(0, 1), tags.flatten(), ignore_index=ignored)",
                    "loss = tag_loss(model(words, lengths), tags)",
                    "right[tags != PAD].float().mean() if MENDED else right.float().mean()",
                    "return pad_sequence(words, True, PAD), pad_sequence(tags, True, PAD), lengths",
                ),
                "ignore_index=PAD, and accuracy over real words",
                "batches of one; packing as the cure (the LSTM is packed already); padding to one length",
                kind="risk",
            ),
        ),
    ),
    Script(
        "hf_folk_riddles",
        "hf Trainer, sequence classification",
        1,
        tempting="accumulation; padding (to the longest of the batch); evaluation (once an epoch)",
    ),
    Script(
        "fsdp_loom_patterns",
        "fsdp fully_shard, masked autoencoder",
        2,
        tempting="the full state gathered (once, at the end); another seed on each rank (masks); masks drawn anew",
    ),
    Script(
        "pottery_gan",
        "gan, R1 every 16 steps, plain loop",
        1,
        tempting="create_graph (every 16 steps); requires_grad_ to and fro; the fake used twice (detached once)",
        figure="mean",
    ),
    Script(
        "bridge_cracks",
        "vision, two tasks, DDP with accumulation",
        2,
        tempting="no_sync (is there); the loss divided; sums of a metric each micro-batch (on the device)",
    ),
    Script(
        "lightning_tea_tasters",
        "lightning, tabular, transformer",
        1,
        tempting="self.log each step; no checkpoints; schedule each step (is meant so)",
    ),
    Script(
        "greenhouse_vents",
        "rl TD3, greenhouses as tensors",
        1,
        tempting="targets without gradient; actor every second step; gradients of the critic in the actor's loss",
    ),
    Script(
        "accelerate_court_rolls",
        "accelerate, text, transformer, accumulation",
        2,
        tempting="accumulation (is right); padding (masked); gather_for_metrics (once an epoch)",
    ),
    Script(
        "cheese_plates",
        "recommender, DeepFM, plain loop",
        2,
        tempting="no DistributedSampler (shares are taken by hand, anew each epoch); dense gradients of small tables",
    ),
    Script(
        "spice_routes",
        "graph, GCN over the whole graph, plain loop",
        1,
        tempting="the same data each step (the whole graph); no loader; evaluation every 25 steps; sampling",
    ),
    Script(
        "foghorn_sounds",
        "audio, spectrogram in the model, plain loop",
        2,
        tempting="broadcast_buffers off (the window is constant); the spectrogram in the model; a seed for each rank",
    ),
)
