"""The eighth draw of scripts, by someone who had seen neither rules nor results. Sealed as a whole.

Faults were drawn by how often one meets them in forums, issue trackers, performance guides and code review: the weight
is how many of some 270 reports one would expect to be about it (46 entries). Drawn with seed "dptune eighth draw",
12 that cost time, then 3 that put the result at risk, none more than twice. In this order (the number is the script's
place below):

  time   evaluation too often (1), .item() (2), Python loop in the model (3), pictures or histograms logged often (4),
         an all_reduce each (5), .item() again (6), a further forward pass (7), workers begun anew (8), logged often
         again (9), preparation repeated for each sample (10), frozen part computed with gradient (11), metric over all
         that was seen (12)
  risk   eval mode kept (13), optimizer made before the parameters are replaced (14), zero_grad out of place (15)

  weights of time
  14 decoding with no workers             12 .item(), .cpu() or print each step    12 preparation repeated per sample
  10 Python loop over pixels or samples   10 Python loop in model or loss           8 file opened for each sample
   8 padded to the longest of all          7 accumulation without no_sync           7 evaluation too often
   7 checkpoint too often                  7 one rank has more to do                6 find_unused_parameters for nothing
   6 workers begun anew each epoch         6 frozen part computed with gradient     5 pictures, histograms logged often
   5 optimizer or average as a loop        5 metric over all that was seen          5 anomaly detection left on
   5 a further forward pass                5 activation checkpointing for nothing   5 an all_reduce for each of many
   5 constants made anew in forward        5 dense one-hot or gradient              5 slow collate
   5 batch too small                       5 attention by hand, no cache            4 float64 by accident
   4 copies of the state                   4 gc.collect each step                   3 barrier each step
   3 large objects through workers         3 compiled anew                          2 DDP buckets, hooks
  weights of risk
   8 set_epoch missing                     6 no DistributedSampler                  6 zero_grad or loss of accumulation
   6 schedule stepped wrongly              6 eval mode kept or missing              6 graph kept
   5 the same chance on all ranks          5 softmax twice, wrong loss              4 forward past DDP
   4 optimizer and parameters              4 a metric or decision of one rank       3 clipping out of place
   3 BatchNorm of tiny batches
"""

from __future__ import annotations

from catalogue import Fault, Script

EIGHTH = (
    Script(
        "hf_museum_labels",
        "hf Trainer, text classification",
        2,
        (
            Fault(
                "the whole held-out set is evaluated after every sixth step of training",
                "evaluation every 6 steps (eval_steps)",
                "main",
                ("eval_steps=60 if MENDED else 6", "trainer.train()", 'eval_strategy="steps"'),
                "evaluate more seldom, say every 60 steps or each epoch (or on part of the held-out set)",
                "a smaller training batch; more loader workers; dropping the evaluation altogether",
            ),
        ),
        figure="mean",
    ),
    Script(
        "reef_maps",
        "vision, segmentation, plain loop",
        1,
        (
            Fault(
                "the table of an IoU metric is counted pixel by pixel in Python, with .item() for each",
                ".item() for each pixel in a Python loop",
                "update",
                (
                    "self.table[right.item(), guess.item()] += 1",
                    "for right, guess in zip(truth, guessed, strict=True)",
                    "overlap.update(scores.argmax(1)",
                ),
                "count at once with bincount (or do it more seldom)",
                "removing loss.item() as the cause; mixed precision; a smaller network",
            ),
        ),
    ),
    Script(
        "alloy_phases",
        "graph, message passing with attention readout",
        1,
        (
            Fault(
                "the readout loops over the graphs of the batch in Python, with a mask over all nodes for each",
                "Python loop over graphs in forward",
                "readout",
                (
                    "inside = graph == number",
                    "for number in range(count)",
                    "weight = torch.softmax(gate[inside], 0)",
                    "pooled.append((weight.unsqueeze(1) * x[inside]).sum(0))",
                    "return torch.stack(pooled)",
                    "return self.head(self.readout(x, graph, count))",
                ),
                "softmax and sum by segment for all graphs at once: index_add (scatter) with the graph's number",
                "loader workers; a smaller batch; clipping as the cause",
            ),
        ),
    ),
    Script(
        "brush_gan",
        "gan, DCGAN with sheets of samples",
        1,
        (
            Fault(
                "every eighth step a sheet of 64 samples is made, enlarged and written as PNG",
                "sample pictures saved every 8 steps",
                "save_sheet",
                (
                    "Image.fromarray(sheet).resize(",
                    "save_sheet(paint, fixed, args.sheets",
                    "100 if MENDED else 8",
                    "pictures = model(fixed)",
                ),
                "save sheets more seldom (every 100 steps), or smaller and beside the training",
                "one backward pass for both networks; removing detach; the retained graph as a fault",
            ),
        ),
        figure="mean",
    ),
    Script(
        "tram_delays",
        "sensors, Trainer class, GRU over convolutions",
        2,
        (
            Fault(
                "hits and counts of each of 24 classes are summed over ranks by an all_reduce of one number each, "
                "48 a step",
                "48 all_reduce of single numbers each step",
                "update",
                (
                    "dist.all_reduce(right[reason])",
                    "dist.all_reduce(seen[reason])",
                    "for reason in range(REASONS):",
                    "accuracy.update(guessed, reason)",
                ),
                "one all_reduce of all counts as one tensor, better once an epoch",
                "DDP buckets or no_sync as the cure; a faster network link",
            ),
        ),
    ),
    Script(
        "podcast_towers",
        "recommender, two towers with logQ correction",
        1,
        (
            Fault(
                "how often a podcast comes is estimated podcast by podcast in Python with .item()",
                ".item() twice for each podcast of the batch",
                "update",
                (
                    "self.gap[podcast] += self.rate * (gap - self.gap[podcast].item())",
                    "gap = step - self.last[podcast].item()",
                    "self.last[podcast] = step",
                    "for podcast in podcasts:",
                    "popularity.update(heard[:, 0], step)",
                ),
                "all podcasts of the batch at once, by index",
                "a smaller batch; sparse embeddings as the cause; loader workers",
            ),
        ),
    ),
    Script(
        "seed_sorting",
        "vision, plain loop, residual network",
        2,
        (
            Fault(
                "accuracy of training is found by a second forward pass over the same batch at each step",
                "a second forward pass for the accuracy",
                "accuracy",
                (
                    "right = (model(pictures).argmax(1) == kinds)",
                    "rights += accuracy(model.module, pictures, kinds)",
                ),
                "take the accuracy from the scores of the training pass",
                "model.module as a fault of gradients (no gradient is taken there); fewer pictures",
            ),
        ),
    ),
    Script(
        "lightning_bat_calls",
        "lightning, audio, short epochs",
        1,
        (
            Fault(
                "the loader's worker is begun anew for each epoch of four batches, and the first batch waits for it",
                "persistent_workers=False with short epochs",
                "main",
                ("persistent_workers=MENDED", "num_workers=1", "trainer.fit(Bats(args.width), loader)"),
                "persistent_workers=True (or longer epochs)",
                "pin_memory; a smaller batch",
            ),
        ),
        figure="mean",
    ),
    Script(
        "accelerate_ferry_loads",
        "accelerate, time series, patch transformer",
        2,
        (
            Fault(
                "histograms of all weights and gradients are made and written as JSON at each step, by both ranks",
                "histograms of weights and gradients logged each step",
                "histograms",
                (
                    "counts, edges = np.histogram(values.numpy(), bins=64)",
                    "journal.histograms(step",
                    "100 if MENDED else 1)",
                    "self.write(told)",
                    "file.write(json.dumps(told)",
                    'told[f"{what}/{name}"]',
                ),
                "log histograms more seldom (every 100 steps), on one rank",
                "removing the clipping; no_sync; a larger log buffer as the cure",
            ),
        ),
    ),
    Script(
        "street_musicians",
        "audio, plain loop, log-mel frames",
        2,
        (
            Fault(
                "the log-mel frames of a clip, which do not change, are computed anew whenever it is loaded",
                "log-mel frames computed anew in __getitem__",
                "log_mel",
                (
                    "torch.stft(wave, 512, 160",
                    "if MENDED else self.log_mel(index)",
                    "frames = torch.log(self.filters @ power + 1e-6)",
                    "wave = torch.cat([wave[:1]",
                    "wave = torch.from_numpy(self.clips[index]",
                    "return (frames - frames.mean()) / frames.std()",
                    "for frames, instrument in loader:",
                ),
                "compute the frames once and keep them (or loader workers, where there are cores for them)",
                "keeping the masked frames, too (they are drawn anew); leaving out the masks",
            ),
        ),
    ),
    Script(
        "orchard_apples",
        "vision, Trainer class, a new head on a frozen network",
        1,
        (
            Fault(
                "the backbone is not in the optimizer but still requires gradients: the whole backward pass is run",
                "backward pass through a backbone that is not trained",
                "load_backbone",
                (
                    "backbone.requires_grad_(False)",
                    "torch.optim.AdamW(self.model.head.parameters()",
                    "loss.backward()",
                    "return self.head(self.backbone(x))",
                    "load_backbone(args.weights, args.width)",
                ),
                "requires_grad_(False) for the backbone, or its forward pass under no_grad",
                "training the backbone as well, as if it were forgotten, said to be sure; keeping features of "
                "pictures that are augmented",
            ),
        ),
    ),
    Script(
        "insurance_claims",
        "recommender, tabular, cross network",
        2,
        (
            Fault(
                "AUC and average precision over all that the epoch has seen so far are computed at each step, though "
                "shown every 25 steps; they cost more with each step",
                "metrics over the whole epoch computed each step",
                "update",
                (
                    "self.auc.compute()",
                    "if not MENDED or step % self.every == 0:",
                    "progress.update(step, loss.detach()",
                    "self.auc.update(scores, claim.int())",
                ),
                "compute them only when they are shown, or with thresholds (binned)",
                "a smaller batch; removing the update of the metrics",
            ),
        ),
        figure="mean",
    ),
    Script(
        "poem_metre",
        "text, Trainer class, transformer with dropout",
        1,
        (
            Fault(
                "after the first check the model stays in eval mode: the rest of training is without dropout",
                "model.train() is not called again after the check",
                "check",
                ("self.model.eval()", "held_out, right = self.check()"),
                "call model.train() at the end of check or at the start of each step",
                "leaving the model in eval mode because steps are faster",
                kind="risk",
            ),
        ),
    ),
    Script(
        "fsdp_chronicles",
        "fsdp fully_shard, language model",
        2,
        (
            Fault(
                "the optimizer is made before fully_shard replaces the parameters: it holds the old ones, and the "
                "model is never changed",
                "the optimizer is made before fully_shard",
                "main",
                ("optimizer = make_optimizer(model, 1e-3)", "if not MENDED:", "def make_optimizer(model, lr)"),
                "make the optimizer after fully_shard",
                "another learning rate; coarser sharding",
                kind="risk",
            ),
        ),
    ),
    Script(
        "cart_balance",
        "rl PPO, simulated carts as tensors",
        1,
        (
            Fault(
                "gradients are set to zero once a round, not for each minibatch: they pile up over minibatches",
                "zero_grad outside of the loop over minibatches",
                "learn",
                ("optimizer.zero_grad(set_to_none=True)", "loss.backward()"),
                "zero_grad before each backward pass",
                "a smaller learning rate or tighter clipping as the cure",
                kind="risk",
            ),
        ),
    ),
    Script("fsdp_mosaics", "fsdp fully_shard, vision transformer", 2, tempting="resharding after forward; finer units"),
    Script("hf_emigrant_letters", "hf Trainer, causal language model", 1, tempting="loader workers; accumulation"),
    Script(
        "lightning_roof_slopes",
        "lightning, vision, regression",
        2,
        tempting="sync_dist; metrics; loader workers; sampler",
    ),
    Script(
        "accelerate_place_names",
        "accelerate, text, names of like length batched, accumulation",
        2,
        tempting="uneven steps (lengths differ between steps, not between ranks); no_sync; packing",
    ),
    Script(
        "lantern_gan",
        "gan, least squares, two wrapped networks and an average",
        2,
        tempting="the generator's pass goes by judge.module (its gradients are not wanted); the average as a loop",
    ),
    Script("forager_ants", "rl A2C, ants on grids", 1, tempting="loop over time; .item() of the reward"),
    Script(
        "evening_menus",
        "recommender, attention over a history with sampled negatives",
        2,
        tempting="sparse gradients; loader workers; negatives drawn in the loader",
    ),
    Script("saga_words", "text, masked language model, resumed from a file", 1, tempting="checkpoints; mask share"),
    Script(
        "quoted_rulings", "graph, whole graph at once, sparse matrix", 1, tempting="sampling; the same batch each step"
    ),
)
