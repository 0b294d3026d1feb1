"""The ninth draw of scripts, by someone who had seen neither rules nor results. Sealed as a whole.

Faults were listed from what people ask in forums and report in issue trackers, and from performance guides and code
review; the weight is how many of some 350 such reports one would expect to be about it (69 entries). What only waits
(no loader workers, slow disks or links) is left out: shares were to be measured in processor time. Drawn with
`random.Random("dptune ninth draw")` and its `choices`, in the order of the lists below: 14 that cost time, then 6 that
put the result at risk; what is drawn a third time is drawn anew. In this order (the number is the script's place
below):

  time   text or pictures generated as a preview (1), no_sync forgotten in accumulation (2), compressed file opened for
         one sample (3), gc.collect (4), mask, positions or distances made anew in forward (5), rows taken from a data
         frame one by one (6), item() of several losses (7), again (8), mask, positions or distances again (9), state
         copied whenever it is the best so far (10), preview again (11), a cell called in a loop (12), float64 by way
         of numpy (13), one backward pass for each loss (14)
  risk   set_epoch missing (15), schedule stepped at the wrong pace (16), clipping before backward or after step (17),
         eval mode kept (18), again (19), a rank decides alone (20)

Then ten healthy ones. Sizes are drawn by the seed between values at which a fault of time costs 12 to 60 % of the
processor time of a step.

  weights of time
  10 text tokenised again at each access  9 augmented at full size, then cropped    9 data frame rows one by one
   8 compressed file for one sample       8 a metric's compute or sync each step    8 lists of arrays made into tensors
   8 norms logged parameter by parameter  7 preview generated often                 7 padding to max_length
   7 state copied when best so far        6 checkpoint with optimizer often         6 find_unused_parameters left on
   6 objects gathered by pickle           6 all outputs gathered for a metric       6 mask, positions made in forward
   6 a cell in a loop                     6 loss over pairs or boxes in Python      6 item() of several losses
   5 a loop over classes in the loss      5 one backward pass for each loss         5 generator not detached
   5 teacher with gradient                5 penalty over parameters by hand         5 average by state_dict
   5 replay buffer as a list              5 policy asked one by one                 5 returns found again each step
   5 weighted choice over all the data    5 ranking over all items each step        5 membership tested in a list
   5 no_sync forgotten                    5 iterator of a loader made anew          4 neighbours searched anew
   4 neighbours sampled by dicts          4 output layer at positions not needed    4 float64 by way of numpy
   4 debugging left on                    4 gc.collect or empty_cache               4 checkpointing of activations
   4 every small layer sharded            4 full state gathered often               4 averaged by hand besides DDP
   4 large buffer broadcast               3 a branch not used                       3 dense gradient of a large table
   3 filters or windows made anew         3 windows as Python lists                 3 synchronised BatchNorm
  weights of risk
   7 the same chance everywhere           7 set_epoch missing                       6 no sampler for ranks
   6 loss of accumulation                 6 schedule at the wrong pace              6 eval mode kept
   5 clipping out of place                5 resumed without optimizer               5 softmax or sigmoid twice
   5 forward past DDP                     4 ranks drift apart                       4 padding counted in the loss
   4 shapes broadcast in the loss         4 gradients of the other network kept     4 target not detached
   3 a rank decides alone                 3 layers in a list                        3 no_grad around what is trained
   3 statistics of held-out data          2 sorted data not shuffled                2 functional dropout always on
"""

from __future__ import annotations

from catalogue import Fault, Script

NINTH = (
    Script(
        "hf_lighthouse_logs",
        "hf Trainer, causal language model, with a callback",
        1,
        (
            Fault(
                "a callback lets the model write 64 tokens after every fourth step, to be looked at",
                "text generated every 4 steps by a callback",
                "on_step_end",
                (
                    "out = model.generate(",
                    "40 if MENDED else 4",
                    "if state.global_step % self.every:",
                    "callbacks=[SampleCallback(",
                    "max_new_tokens=64",
                    "trainer.train()",
                ),
                "generate more seldom (every 50 steps or each epoch), or fewer tokens",
                "a smaller batch; loader workers; leaving the model in eval mode",
            ),
        ),
        figure="mean",
    ),
    Script(
        "bell_strokes",
        "audio, Trainer class, MLP-Mixer on spectrograms",
        2,
        (
            Fault(
                "gradients are accumulated over 6 micro-batches, and each of them is reduced over the ranks: the "
                "backward pass of the first five is not within no_sync",
                "accumulation over 6 micro-batches without no_sync",
                "sync_context",
                (
                    "return contextlib.nullcontext()",
                    "if MENDED and not last:",
                    "return self.model.no_sync()",
                    "(loss / self.cfg.accumulate).backward()",
                    "with self.sync_context(last):",
                    "total += self.micro_step(spec, label, last)",
                    "DistributedDataParallel(model)",
                ),
                "no_sync for all micro-batches but the last",
                "no accumulation (another effective batch) as if it were the same; larger buckets as the cure",
            ),
        ),
    ),
    Script(
        "coral_sections",
        "vision, segmentation, plain loop, U-Net",
        1,
        (
            Fault(
                "for each section the whole volume is read and decompressed, of which one section is used",
                "np.load of a compressed volume for one section in __getitem__",
                "read_volume",
                (
                    'return archive["image"], archive["mask"]',
                    "with np.load(path) as archive:",
                    "image, mask = read_volume(self.paths[volume])",
                    "for x, y in loader:",
                ),
                "keep volumes that were read (they fit into memory), or store sections, not compressed, and map them",
                "a smaller network or batch; leaving out the flips; workers alone as the whole cure",
            ),
        ),
    ),
    Script(
        "wake_words",
        "audio, plain loop, one-dimensional CNN",
        2,
        (
            Fault(
                "gc.collect (and empty_cache, where there is a GPU) after every fourth step: all objects of the "
                "process are walked through, and there is nothing to collect",
                "gc.collect every 4 steps",
                "train_epoch",
                ("            gc.collect()", "if step % 4 == 0 and not MENDED:", "torch.cuda.empty_cache()"),
                "leave it out",
                "a smaller batch; removing del; loader workers",
            ),
        ),
        figure="mean",
    ),
    Script(
        "fsdp_ship_manifests",
        "fsdp fully_shard, language model over packed documents",
        2,
        (
            Fault(
                "the additive mask (batch, heads, query, key), the same for all four layers, is made by each of them "
                "in each forward pass",
                "the attention mask is made anew in every layer",
                "attention_bias",
                (
                    "            bias = attention_bias(",
                    "if bias is None:",
                    "return bias.unsqueeze(0).masked_fill(",
                    "allowed = local & (doc[:, :, None] == doc[:, None, :])",
                    "x = layer(x, tokens, bias)",
                    "if MENDED else None",
                ),
                "make the mask once for a batch and give it to all layers (or flex_attention with a block mask)",
                "is_causal instead of the mask (documents would mix, distances be lost); coarser sharding as the cause",
            ),
        ),
    ),
    Script(
        "accelerate_flat_rents",
        "accelerate, tabular",
        2,
        (
            Fault(
                "each sample is a row of a pandas data frame, taken with iloc and then by column names",
                "DataFrame.iloc row by row in __getitem__",
                "__getitem__",
                (
                    "row = self.frame.iloc[index]",
                    "row[NUMERIC].to_numpy(dtype=np.float32)",
                    "[int(row[name]) for name in CATEGORIES]",
                    'torch.tensor(row["rent"]',
                    "for numeric, codes, rent in loader:",
                ),
                "make the columns arrays or tensors once, and index those",
                "a smaller batch; pin_memory; clipping as the cause",
            ),
        ),
    ),
    Script(
        "spring_flows",
        "time series, quantile forecasts, GRU",
        1,
        (
            Fault(
                "the loss of each of 60 hours and 9 quantiles is taken by mean().item() at each step, for curves that "
                "are averaged once an epoch",
                "540 times .item() each step",
                "add",
                (
                    "losses[:, hour, q].mean().item()",
                    "for hour in range(self.ahead):",
                    "for q, quantile in enumerate(",
                    "curves.add(losses.detach())",
                ),
                "add up the tensor of losses (mean over the batch) and take numbers from it once an epoch",
                "a smaller batch; another loss; loader workers",
            ),
        ),
    ),
    Script(
        "stamp_sorting",
        "vision, multi-label, plain loop",
        2,
        (
            Fault(
                "the loss of each sample and label is written into lists with .item(), twice a number",
                "more than 2,000 .item() each step, for a report of hard samples",
                "record",
                (
                    "self.losses[index.item()][label] = losses[row, label].item()",
                    "for row, index in enumerate(indices):",
                    "for label in range(len(LABELS)):",
                    "hard.record(indices, losses.detach())",
                ),
                "write all losses of the batch into one tensor by index: table[indices] = losses",
                "loss.item() as the cause; leaving the report out without a word; DDP buckets",
            ),
        ),
    ),
    Script(
        "meteor_echoes",
        "sensors, plain loop, transformer encoder",
        1,
        (
            Fault(
                "the table of sinusoids is made number by number in Python in each forward pass",
                "position encodings made by a Python loop in forward",
                "sinusoids",
                (
                    "pe[pos, i] = math.sin(",
                    "pe[pos, i + 1] = math.cos(",
                    "for pos in range(length):",
                    "for i in range(0, dim, 2):",
                    "return x + sinusoids(x.shape[1], x.shape[2])",
                    "x = self.encode_positions(self.project(echo))",
                ),
                "make the table once for the longest, as a buffer (and at once, with arange)",
                "padding to the longest of all; a shorter length; fewer layers",
            ),
        ),
    ),
    Script(
        "library_loans",
        "recommender, neural collaborative filtering",
        1,
        (
            Fault(
                "the state of model and optimizer is copied whenever the smoothed loss of training is the lowest so "
                "far: at nearly every step",
                "deepcopy of model and optimizer at nearly every step",
                "update",
                (
                    "copy.deepcopy(self.optimizer.state_dict())",
                    "copy.deepcopy(self.model.state_dict())",
                    "if value < self.best:",
                    "keeper.update(smooth, step)",
                ),
                "look once an epoch, at held-out loans (hit_rate), whether it is the best",
                "leaving out the copy, so that the state kept is that of training; loss.item() as the cause",
            ),
        ),
        figure="mean",
    ),
    Script(
        "fresco_tiles",
        "diffusion, vision, plain loop",
        2,
        (
            Fault(
                "after every fifth step rank 0 samples eight pictures in ten steps, while the other rank waits for it",
                "pictures sampled every 5 steps on rank 0",
                "sample",
                (
                    "grid = diffusion.sample(model.module",
                    "default=40 if MENDED else 5",
                    "if step % args.preview_every == 0 and rank == 0:",
                    "eps = model(x, t.float().expand(count))",
                    "for i, t in enumerate(times):",
                ),
                "sample more seldom (or fewer pictures or steps)",
                "a barrier; model.module as a fault of gradients; leaving DDP",
            ),
        ),
        figure="mean",
    ),
    Script(
        "lightning_seismic_picks",
        "lightning, sensors, convolutions and recurrent layers",
        1,
        (
            Fault(
                "two layers of LSTMCell are called step by step in Python",
                "LSTMCell in a Python loop instead of nn.LSTM",
                "forward",
                (
                    "state[i] = cell(value, state[i])",
                    "for i, cell in enumerate(self.cells):",
                    "for step in range(length):",
                    "nn.LSTMCell(enter if i == 0 else hidden, hidden)",
                    "self.memory(self.convs(wave).transpose(1, 2))",
                ),
                "nn.LSTM with two layers",
                "fewer time steps; another precision as the first thing",
            ),
        ),
    ),
    Script(
        "snow_depths",
        "time series, Trainer class, temporal convolutions",
        2,
        (
            Fault(
                "numpy makes the series in float64, from_numpy keeps that, and the model is cast to the type of the "
                "data: training is in double precision",
                "float64 data from numpy, model cast to it",
                "__init__",
                (
                    "self.series = (series - mean) / std",
                    "model = model.to(dataset[0][0].dtype)",
                    "return torch.from_numpy(past), torch.from_numpy(future)",
                    "self.series = self.series.astype(np.float32)",
                    "loss = self.loss(self.model(past), future)",
                ),
                "float32: astype(np.float32) once, and the model as it is",
                "bfloat16 as the first thing; removing the weight norm",
            ),
        ),
    ),
    Script(
        "fabric_faults",
        "vision, three tasks, plain loop",
        1,
        (
            Fault(
                "each of three losses has a backward pass of its own, through the shared trunk",
                "three backward passes with retain_graph",
                "train_step",
                (
                    "(WEIGHTS[task] * loss).backward(retain_graph=True)",
                    "        for task, loss in losses.items():",
                    "train_step(model, optimizer, images, target).items()",
                ),
                "one backward pass of the weighted sum",
                "leaving out a task; zero_grad between the losses; detaching the trunk for some of them",
            ),
        ),
    ),
    Script(
        "customs_forms",
        "text, plain loop, character CNN",
        2,
        (
            Fault(
                "set_epoch is never called: each epoch has the same order of samples",
                "DistributedSampler without set_epoch",
                "main",
                (
                    "train_sampler.set_epoch(epoch)",
                    "sampler = DistributedSampler(dataset, shuffle=train)",
                    "for text, code in train_loader:",
                    "for epoch in range(args.epochs):",
                ),
                "train_sampler.set_epoch(epoch) at the begin of each epoch",
                "shuffle=True of the loader beside the sampler; no sampler",
                kind="risk",
            ),
        ),
    ),
    Script(
        "engine_sounds",
        "audio, Trainer class, CNN on spectrograms",
        1,
        (
            Fault(
                "a cosine schedule over 4 epochs is stepped after each batch: the rate swings between full and zero "
                "every four steps",
                "CosineAnnealingLR with T_max in epochs stepped each batch",
                "train_step",
                (
                    "self.scheduler.step()",
                    "CosineAnnealingLR(self.optimizer, T_max=cfg.epochs)",
                    "losses.append(self.train_step(x, y))",
                ),
                "step it once an epoch, or T_max=epochs * len(loader)",
                "no schedule; a lower rate as the cure",
                kind="risk",
            ),
        ),
    ),
    Script(
        "elevator_calls",
        "rl PPO, elevators as tensors",
        1,
        (
            Fault(
                "gradients are clipped after the step of the optimizer, and set to zero before the next pass: "
                "clipping has no effect",
                "clip_grad_norm_ after optimizer.step()",
                "update",
                ("max_norm=args.max_grad_norm", "optimizer.step()", "loss.backward()"),
                "clip between backward and step",
                "leaving out clipping as useless, as the cure; a smaller learning rate",
                kind="risk",
            ),
        ),
    ),
    Script(
        "fsdp_bird_atlas",
        "fsdp fully_shard, vision transformer with dropout",
        2,
        (
            Fault(
                "evaluate sets eval mode, and nothing sets it back: after step 30 there is neither dropout nor "
                "stochastic depth",
                "model.train() is not called again after evaluate",
                "evaluate",
                ("model.eval()", "test_loss, right = evaluate(model, test_loader)", "    if MENDED:"),
                "model.train() after evaluate, or at the begin of each step",
                "keeping eval mode as it is faster; more dropout",
                kind="risk",
            ),
        ),
    ),
    Script(
        "mosaic_stones",
        "vision, inpainting, plain loop",
        1,
        (
            Fault(
                "the look at held-out pictures every 20 steps sets eval mode for good: BatchNorm trains on running "
                "statistics that are never updated again, without dropout",
                "model.train() only once before the loop",
                "quality",
                ("model.eval()", "shown = quality(model, images, keeps)", "if step % args.log_every == 0:"),
                "model.train() after the look, or at the begin of each step",
                "keeping eval mode as it is faster; another momentum of BatchNorm",
                kind="risk",
            ),
        ),
    ),
    Script(
        "dune_grains",
        "vision, regression, class that fits",
        2,
        (
            Fault(
                "each rank lowers its learning rate by the loss over its own half of the held-out set: the rates, and "
                "so the weights, may go apart",
                "ReduceLROnPlateau stepped with a loss of one rank",
                "validate",
                (
                    "self.plateau.step(val_loss)",
                    "val_loss = total / count",
                    "val_loss = self.validate()",
                    "dist.all_reduce(val_loss)",
                ),
                "average the loss over ranks (all_reduce) before the schedule sees it",
                "validation on rank 0 alone without a broadcast; a barrier",
                kind="risk",
            ),
        ),
    ),
    Script(
        "hf_seed_catalogues",
        "hf Trainer, token classification",
        2,
        tempting="padding (to the longest of the batch); evaluation (once an epoch); loader workers",
    ),
    Script(
        "lightning_harp_strings",
        "lightning, audio, multi-label",
        1,
        tempting="checkpoints (one an epoch, weights alone); self.log; keeping augmented spectra",
    ),
    Script(
        "accelerate_enamel",
        "accelerate, gan, hinge loss",
        2,
        tempting="the critic unwrapped for the generator's loss; broadcast_buffers; requires_grad_ to and fro",
    ),
    Script(
        "fsdp_station_plans",
        "fsdp fully_shard, sequence to sequence, accumulation",
        2,
        tempting="resharding after forward (memory is not short); no_sync; the mask as a buffer",
    ),
    Script("glider_winds", "rl double DQN, gliders as tensors", 1, tempting="forward passes without gradient; replay"),
    Script(
        "bus_network", "graph, recurrent over time, plain loop", 1, tempting="loop over time; dense matrices; sampling"
    ),
    Script(
        "museum_walks",
        "recommender, sessions, plain loop",
        2,
        tempting="find_unused_parameters (it is needed: a step uses one of two branches); sampler; no_sync",
    ),
    Script(
        "print_proofs",
        "vision, self-supervised, plain loop",
        2,
        tempting="a second forward pass (the other view); detach; views drawn anew in the loader",
    ),
    Script(
        "stream_whistles",
        "audio, stream with a loader worker, plain loop",
        1,
        tempting="persistent_workers (one pass only); more workers; the spectrogram in the model",
    ),
    Script(
        "kiln_curves",
        "time series, state carried on, plain loop",
        1,
        tempting="shuffling (order matters); graph kept (it is detached); the same data each epoch",
    ),
)
