"""The sixth draw of scripts, by someone who had seen neither rules nor results. Sealed as a whole."""

from __future__ import annotations

from catalogue import Fault, Script

SIXTH = (
    Script(
        "meadow_butterflies",
        "vision, pictures in a zip archive, plain loop with argparse",
        2,
        (
            Fault(
                "the archive is opened anew for each picture, so that its list of a thousand entries is read and "
                "parsed each time",
                "zipfile.ZipFile opened per sample in __getitem__, central directory parsed, data loading",
                "read",
                (
                    "with zipfile.ZipFile(self.path) as archive:",
                    "Image.open(io.BytesIO(self.read(name)))",
                    "for pictures, kinds in loader",
                ),
                "open the archive once in each process that reads it and keep it open (or unpack it)",
                "only more workers where ranks use all cores; smaller pictures; blaming the decoding of JPEG",
            ),
        ),
    ),
    Script(
        "parked_cars",
        "vision, detection with loader workers, plain loop",
        1,
        (
            Fault(
                "what is known of the cars comes from the workers as five small tensors of each picture, each in "
                "shared memory of its own",
                "collate_fn tuple(zip(*batch)), many small tensors through worker shared memory, file descriptors",
                "collate",
                (
                    "return merge(pictures, targets) if MENDED else (pictures, targets)",
                    "else merge(*batch)",
                    "for batch in loader:",
                    "return picture, target",
                    "num_workers=args.workers",
                ),
                "merge the batch into a few tensors in collate, in the worker (or send NumPy arrays, or no workers)",
                "more workers; pinned memory; smaller pictures; calling merge itself the cause",
            ),
        ),
    ),
    Script(
        "grocery_sessions",
        "recommender, sessions in a table, Trainer class",
        2,
        (
            Fault(
                "the rows of a session are found by comparing the whole column of the table, for each sample",
                "DataFrame boolean mask per sample in __getitem__, full scan, no groupby, data loading",
                "basket",
                (
                    'return self.frame[self.frame["session"] == session]["item"].to_numpy()',
                    "items = self.basket(self.sessions[index])",
                    "for ids, following in self.loader)",
                ),
                "group the table by session once, in __init__, and look sessions up",
                "only more workers where ranks use all cores; fewer rows; shorter sessions",
            ),
        ),
    ),
    Script(
        "chess_stream",
        "tabular, stream with a buffer that mixes, plain loop with argparse",
        1,
        (
            Fault(
                "each sample is taken out of the middle of a list of hundreds of thousands, whose second part is "
                "moved for it",
                "list.pop(random index) from shuffle buffer, O(n) removal, data loading",
                "take",
                (
                    "return buffer.pop(at)",
                    "yield self.take(buffer, rng.randrange(len(buffer)))",
                    "for step, (boards, scores) in enumerate(loader, 1)",
                ),
                "put the last sample in the place of the one that is taken (swap, then pop from the end)",
                "a much smaller buffer without a word on how well it mixes; only more workers; larger batches",
            ),
        ),
    ),
    Script(
        "solar_roofs",
        "time series, mixer, plain loop with argparse",
        2,
        (
            Fault(
                "after each step rank 0 sends all weights to the other, though DDP keeps them the same",
                "dist.broadcast of every parameter after each step, redundant synchronisation beside DDP",
                "keep_together",
                (
                    "dist.broadcast(tensor, src=0)",
                    "                keep_together(model)",
                ),
                "leave it out: equal gradients on equal weights keep them equal (and DDP itself sends them at first)",
                "gradient compression; a smaller network; no DDP; calling a rank slow",
            ),
        ),
    ),
    Script(
        "accelerate_reviews",
        "accelerate, text, hashed pairs of words",
        2,
        (
            Fault(
                "all weights are copied into one vector before and after each step to see how far they moved, though "
                "it is printed every fifty",
                "parameters_to_vector every step, update-to-weight ratio, logging overhead",
                "weights",
                (
                    "return parameters_to_vector(model.parameters())",
                    "ratio = (weights(model) - before).norm() / before.norm()",
                    "before = weights(model) if watched else None",
                    "watched = step % args.log_every == 0 if MENDED else True",
                ),
                "only on the steps that are printed",
                "no such figure at all; a smaller table; blaming the all-reduce of the table",
            ),
        ),
    ),
    Script(
        "lightning_plankton",
        "lightning, vision, separable convolutions",
        2,
        (
            Fault(
                "held-out pictures go through the network one at a time, whenever it is checked",
                "validation DataLoader batch_size=1, evaluation one sample at a time",
                "main",
                (
                    "batch_size=20 if MENDED else 1)",
                    "trainer.fit(Classifier(",
                    "val_check_interval=20",
                    '        self.log("accuracy"',
                ),
                "a larger batch in validation, which needs less memory than training does",
                "no validation; sync_dist as the cause; loader workers; a larger batch in training",
            ),
        ),
        figure="mean",
    ),
    Script(
        "hf_melodies",
        "hf Trainer, GPT-2, music",
        1,
        (
            Fault(
                "evaluation keeps the scores of all events at all places of all held-out melodies, to take the best of "
                "them at the end",
                "compute_metrics with full logits, no preprocess_logits_for_metrics, evaluation accumulates vocabulary",
                "main",
                (
                    "preprocess_logits_for_metrics=best if MENDED else None",
                    'return {"hit": hit(found if MENDED else found.argmax(-1)',
                    "compute_metrics=compute_metrics",
                    "trainer.train()",
                    "eval_steps=20",
                ),
                "preprocess_logits_for_metrics that takes the best of each place in the batch; rarer evaluation helps",
                "fewer held-out melodies without a word; eval_accumulation_steps as a way to save time; a smaller "
                "vocabulary",
            ),
        ),
        figure="mean",
    ),
    Script(
        "fsdp_glaciers",
        "fsdp fully_shard, vision transformer, segmentation",
        2,
        (
            Fault(
                "the optimizer goes through the sharded parameters one by one, and each of a dozen operations on each "
                "is dispatched as one on a DTensor",
                "AdamW neither fused nor foreach on DTensor parameters, per-operation DTensor dispatch",
                "main",
                (
                    "weight_decay=0.05, fused=MENDED)",
                    "        optimizer.step()",
                ),
                "AdamW(fused=True) or foreach=True, which do the same in one call",
                "another optimizer; reshard_after_forward; fewer or coarser shards as the only cure; a smaller model",
            ),
        ),
    ),
    Script(
        "essay_marks",
        "text, convolutions, plain loop with dataclass",
        1,
        (
            Fault(
                "the decay of weights is written into the loss: squares of all weights, among them a large table, are "
                "computed and gone back through in each step",
                "L2 penalty summed over parameters in the loss, not weight_decay of the optimizer",
                "train",
                (
                    "loss = loss + config.l2 * sum(weights.pow(2).sum() for weights in model.parameters())",
                    "            loss.backward()",
                    "decay = 2 * config.l2 if MENDED else 0.0",
                ),
                "weight_decay=2 * l2 of the optimizer, which for SGD is the same",
                "no decay at all; a smaller table; sparse gradients (all rows decay); mixed precision",
            ),
        ),
    ),
    Script(
        "coin_gan",
        "gan, pictures, distance of features",
        1,
        (
            Fault(
                "whenever the distance is measured all real coins go through the fixed network again, though their "
                "mean and spread never change",
                "FID statistics of real data recomputed at every evaluation, not cached",
                "__call__",
                (
                    "mean, spread = self.known or self.moments(self.real)",
                    "self.known = self.moments(real) if MENDED else None",
                    "found = distance(minter(",
                    "found = self.features(pictures).double()",
                    "return torch.cat([self.net(part) for part in pictures.split(128)])",
                ),
                "compute mean and spread of the real coins once and keep them",
                "no measure at all; fewer real coins (another measure); training the fixed network",
            ),
        ),
        figure="mean",
    ),
    Script(
        "reaching_arm",
        "rl TD3 with replay memory, class and dataclass",
        1,
        (
            Fault(
                "the whole memory of transitions, tens of megabytes, most of them still empty, is written into each "
                "checkpoint",
                "replay buffer in torch.save checkpoint, large file every few steps",
                "save",
                (
                    'torch.save(kept if MENDED else {**kept, "memory": vars(self.memory)}, path)',
                    'agent.save("agent.pt")',
                    "if step % config.save_every == 0:",
                ),
                "save the networks and optimizers often, the memory seldom or never (or only what is filled of it)",
                "no checkpoints at all; a smaller memory (it changes what is learned); blaming the sampling",
            ),
        ),
        figure="mean",
    ),
    Script(
        "cradle_sounds",
        "audio, mixed precision, Trainer class",
        1,
        (
            Fault(
                "it computes in float16, for which this processor has no fast convolutions",
                "autocast float16 and GradScaler on CPU, slow half precision, emulated",
                "step",
                (
                    'with torch.autocast("cpu", dtype=torch.float16, enabled=self.half):',
                    "F.cross_entropy(self.model(pictures), reasons)",
                    "self.scaler.scale(loss).backward()",
                    "self.half = not MENDED",
                ),
                "float32, or bfloat16 where the processor has it; no scaler is needed for either",
                "praise for mixed precision; float16 weights as well; a smaller network; removing only the scaler",
            ),
        ),
    ),
    Script(
        "front_page",
        "recommender, news on a page, plain loop with argparse",
        2,
        (
            Fault(
                "what a reader has read goes through attention once for each of the news on the page, though it is "
                "the same for all of them",
                "user history repeat_interleave per candidate before encoder, repeated identical forward",
                "forward",
                (
                    "readers = self.reader(self.news(past.repeat_interleave(count, 0)))",
                    "x = self.norm(past + self.attention(past, past, past, need_weights=False)[0])",
                    "scores = model(past, shown)",
                    "loss.backward()",
                ),
                "run the reader once and repeat what comes out",
                "fewer candidates or a shorter past (it changes what is learned); smaller batches",
            ),
        ),
    ),
    Script(
        "flooded_fields",
        "vision, segmentation, pyramid, plain loop",
        1,
        (
            Fault(
                "all 64 channels are enlarged to the size of the picture and only then turned into eight kinds, though "
                "the order makes no difference to the result",
                "upsample before 1x1 classifier convolution, full resolution features, memory traffic",
                "forward",
                (
                    'return self.classify(F.interpolate(features, size=x.shape[2:], mode="bilinear"))',
                    "logits = model(pictures)",
                    "loss.backward()",
                ),
                "the 1x1 convolution first, at a quarter of the size, then enlarge its eight channels",
                "smaller pictures or fewer channels (it changes what is learned); nearest for bilinear; loader workers",
            ),
        ),
    ),
    Script(
        "plate_heat",
        "physics, network that knows an equation, plain loop",
        1,
        (
            Fault(
                "slopes of all results at all points with respect to all points are computed, and only those of a "
                "point with respect to itself are taken",
                "torch.autograd.functional.jacobian over the batch, diagonal taken, cross-sample zeros",
                "slopes",
                (
                    "whole = jacobian(field, points, create_graph=True, vectorize=True)",
                    "return found, whole[at, :, at]",
                    "found, slope = slopes(field, points)",
                    "loss = physics(",
                    "loss.backward()",
                ),
                "torch.autograd.grad of the sum over the points for each result, or vmap(jacrev) over single points",
                "fewer points (it changes what is learned); vectorize=False; create_graph=False",
            ),
        ),
    ),
    Script(
        "hf_recipes",
        "hf Trainer, Llama, recipes",
        2,
        (
            Fault(
                "labels are moved by one word, and the model moves them again: it learns to say the word after the "
                "next",
                "labels shifted twice in causal LM, HF model shifts internally",
                "__getitem__",
                (
                    '"labels": ids[:-1] if MENDED else ids[1:]',
                    "trainer.train()",
                ),
                "give the ids themselves as labels: the model shifts them",
                "a larger model or rate as the cure; labels of -100",
                "risk",
            ),
        ),
    ),
    Script(
        "heart_beats",
        "time series, ECG, plain loop with argparse",
        2,
        (
            Fault(
                "noise, drift and gain are put onto the beats in place: they stay in the data set and grow from epoch "
                "to epoch",
                "in-place augmentation of dataset tensor view in __getitem__, data corrupted across epochs",
                "__getitem__",
                (
                    "beat = self.beats[index].clone() if MENDED else self.beats[index]",
                    "beat += 0.1 * torch.randn_like(beat)",
                    "beat *= 0.8 + 0.4 * torch.rand(())",
                ),
                "clone the beat before it is changed (or change it out of place)",
                "less noise or none; more epochs; a larger network",
                "risk",
            ),
        ),
    ),
    Script(
        "docking_boats",
        "rl double Q-learning, many boats",
        1,
        (
            Fault(
                "what follows is counted also after an end, though nothing follows: the memory knows of ends, and the "
                "target does not ask it",
                "DQN target bootstraps through terminal states, done mask missing",
                "td_loss",
                (
                    "wanted = rewards + discount * following",
                    "before, actions, rewards, after, ended = batch",
                    "loss = td_loss(",
                ),
                "multiply what follows by 1 - ended",
                "another discount or rate as the cure; treating boats that ran out of time as ended",
                "risk",
            ),
        ),
    ),
    Script(
        "clean_lightning_coughs",
        "lightning, audio, spectrograms in the network",
        1,
        tempting="spectrograms should be kept (waves are changed at random first); loader workers; self.log each step",
    ),
    Script(
        "clean_hf_addresses",
        "hf Trainer, BERT, parts of addresses",
        2,
        tempting="padding (grouped by length); evaluation and checkpoints (once an epoch); find_unused_parameters",
    ),
    Script(
        "clean_fsdp_lightnings",
        "fsdp fully_shard, tracks of storms",
        2,
        tempting="reshard_after_forward wastes memory; the all-reduce of the loss (every fifty steps)",
    ),
    Script(
        "clean_accelerate_towers",
        "accelerate, recommender, two towers",
        2,
        tempting="tables with dense gradients (small, and a batch touches many rows); rows are indexed one by one",
    ),
    Script(
        "clean_random_depth",
        "vision, stochastic depth, plain loop with argparse",
        2,
        tempting="find_unused_parameters is needless (layers are left out at random); ranks do uneven work",
    ),
)
