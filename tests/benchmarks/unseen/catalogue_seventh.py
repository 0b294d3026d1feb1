"""The seventh draw of scripts, by someone who had seen neither rules nor results. Sealed as a whole.

Faults were drawn with replacement, 16 of this list, by how often one meets them in forums, issue trackers, performance
guides and code review (weight, in shares of 152); the names after a line are what was drawn of it.

    14  samples decoded or parsed in the training process      harbour_ships, hf_council_minutes
    12  logging in every step                                  kitchen_sounds, tile_gan
    10  Python loop over samples, rows or boxes                power_grids, bakery_orders
     8  costly metric in every step                            lesion_outlines
     7  padding to a fixed maximum                             accelerate_questions
     7  the same preprocessing again in each epoch
     6  ranks see the same samples                             vineyard_leaves
     5  schedule or learning rate not matched to steps         pollen_counts
     5  gradients reduced in each accumulated pass             opera_texts
     5  frozen part computes gradients
     5  checkpoints too often                                  fever_curves
     5  evaluation too often, or of too much
     5  one collective for each small metric
     4  outputs or losses kept with their graph
     4  same seed in each worker
     4  unused parameters searched, buffers broadcast          lightning_folk_tunes
     4  one rank has more work
     4  train or eval mode wrong
     4  attention by hand, one-hot products                    fsdp_verses
     4  optimizer or clipping tensor by tensor
     4  DDP bypassed, parameters not in the optimizer
     4  debug switches left on
     3  activation checkpointing without need
     3  sharding finer than memory needs
     3  state not synchronised between ranks                   drone_hover
     3  fp16 without a scaler, clipping before unscaling       valley_birds
     3  workers started anew in each epoch
     3  outputs gathered in each step
     2  gradients not zeroed
     2  float64 from NumPy
"""

from __future__ import annotations

from catalogue import Fault, Script

SEVENTH = (
    Script(
        "fever_curves",
        "time series, Trainer class",
        1,
        (
            Fault(
                "a checkpoint of model and optimizer is written every second step",
                "checkpoint_too_often",
                "save",
                ("torch.save(state", "self.step % args.save_every == 0", '"--save-every"'),
                "save every few hundred steps, or in the background",
                "other data loading; a smaller model",
            ),
        ),
        figure="mean",
    ),
    Script(
        "kitchen_sounds",
        "audio, plain loop",
        1,
        (
            Fault(
                "histograms and sorted parts of all weights and gradients are logged in every step",
                "logging_every_step",
                "describe",
                ("values.sort()", "self.describe(parameter)", "self.describe(parameter.grad)", '"--histograms"'),
                "log them every hundred steps",
                "more loader workers",
            ),
        ),
    ),
    Script(
        "harbour_ships",
        "vision, plain loop with argparse",
        1,
        (
            Fault(
                "photographs are decoded and resized in the training process: the loader has no workers",
                "loader_no_workers",
                "__getitem__",
                ("num_workers=args.workers", "for pictures, ships in loader", "Image.Resampling.BICUBIC)"),
                "num_workers of one or two, or pictures resized once",
                "pinned memory; a smaller batch",
            ),
        ),
    ),
    Script(
        "hf_council_minutes",
        "hf Trainer, text classification",
        2,
        (
            Fault(
                "each paragraph is tokenized in Python whenever it is fetched, whole, though it is cut to 64 tokens",
                "tokenizing_in_getitem",
                "encode",
                ("self.tokenizer(text, self.length)", "for word in words for piece in", "return self.encode("),
                "tokenize once before training, or in workers where cores are free",
                "find_unused_parameters; gradient checkpointing",
            ),
        ),
    ),
    Script(
        "power_grids",
        "graph, plain loop",
        1,
        (
            Fault(
                "nodes are pooled in a Python loop over the graphs of a batch",
                "python_loop",
                "pool",
                ("for number in range(count):", "mine = owner == number", "weight = torch.softmax("),
                "pool with index_add over all graphs at once",
                "a smaller batch",
            ),
        ),
    ),
    Script(
        "bakery_orders",
        "recommender, plain loop",
        2,
        (
            Fault(
                "negatives are drawn one by one in Python",
                "python_loop",
                "unordered",
                ("good = self.rng.randrange(", "for customer in customers:", "customers, goods = sampler.batch("),
                "draw them as a tensor and draw again those that were ordered",
                "gradient compression; larger buckets",
            ),
        ),
    ),
    Script(
        "opera_texts",
        "text, plain loop with accumulated gradients",
        2,
        (
            Fault(
                "gradients are all-reduced in each accumulated pass: no_sync is never entered",
                "no_sync_missing",
                "main",
                ("with model.no_sync() if waits", "loss.backward()"),
                "no_sync in all passes but the last",
                "find_unused_parameters; syncing less often than each optimizer step",
            ),
        ),
    ),
    Script(
        "accelerate_questions",
        "accelerate, text classification",
        2,
        (
            Fault(
                "each batch is padded to the longest length of the data set, questions are mostly short",
                "padding",
                "__call__",
                ("else self.max_length", "torch.full((len(rows), width)", "logits = model("),
                "pad to the longest of the batch, or batch by length",
                "cutting questions short",
            ),
        ),
    ),
    Script(
        "tile_gan",
        "gan, plain loop",
        2,
        (
            Fault(
                "rank 0 paints, enlarges and writes a sheet of pictures in every step, and the other rank waits",
                "logging_every_step",
                "save_grid",
                ("Resampling.BICUBIC).save(path)", "save_grid(painter.module", '"--sample-every"'),
                "write samples every hundred steps",
                "fewer ranks; other bucket sizes",
            ),
        ),
    ),
    Script(
        "fsdp_verses",
        "fsdp fully_shard, text",
        2,
        (
            Fault(
                "attention is written out: scores, mask and softmax as whole matrices",
                "attention_by_hand",
                "attend",
                ("scores.softmax(dim=-1)", "scores = q @ k", "scores.masked_fill("),
                "scaled_dot_product_attention with is_causal",
                "sharding fewer layers as the main gain; a shorter context",
            ),
        ),
    ),
    Script(
        "lightning_folk_tunes",
        "lightning, music",
        2,
        (
            Fault(
                "constant tables of 6.25 MiB a layer are buffers, and DDP broadcasts them before every forward pass",
                "broadcast_buffers",
                "main",
                ("broadcast_buffers=", 'self.register_buffer("bias"'),
                "broadcast_buffers=False",
                "another accumulation; find_unused_parameters",
            ),
        ),
    ),
    Script(
        "lesion_outlines",
        "vision, segmentation, Trainer class",
        1,
        (
            Fault(
                "the area under the curve of all pixels of the last batches is computed in every step, printed in few",
                "metric_every_step",
                "compute",
                ("area = self.area.compute()", ".argsort()"),
                "compute it where it is printed",
                "a smaller model; more loader workers",
            ),
        ),
    ),
    Script(
        "drone_hover",
        "rl policy gradients",
        2,
        (
            Fault(
                "each rank normalizes observations by statistics of its own drones, whose winds differ",
                "state_unsynchronised",
                "update",
                ("self.mean += ", "sums = torch.cat(", "norm.update(seen)"),
                "all-reduce the sums",
                "SyncBatchNorm",
                kind="risk",
            ),
        ),
    ),
    Script(
        "vineyard_leaves",
        "vision, plain loop",
        2,
        (
            Fault(
                "the loader shuffles by the same seed on both ranks, without a sampler: both train on the same samples",
                "same_samples",
                "make_loader",
                ("DataLoader(data, batch, shuffle=True", "seed_all(2024)"),
                "DistributedSampler with set_epoch",
                "more ranks",
                kind="risk",
            ),
        ),
    ),
    Script(
        "valley_birds",
        "audio, Trainer class, float16",
        1,
        (
            Fault(
                "float16 without loss scaling: the scaler is off, small gradients become zero",
                "fp16_without_scaler",
                "__init__",
                ("torch.amp.GradScaler(", "dtype=torch.float16"),
                "enable the scaler, or bfloat16",
                "float16 for the parameters as well",
                kind="risk",
            ),
        ),
    ),
    Script(
        "pollen_counts",
        "vision, Trainer class with a schedule",
        1,
        (
            Fault(
                "a schedule in epochs is stepped in every batch: the rate rises and falls in 24 of them",
                "schedule_unit",
                "train_epoch",
                ("if not MENDED:", "CosineAnnealingLR(self.optimizer"),
                "step it once an epoch, or T_max in steps",
                "another optimizer",
                kind="risk",
            ),
        ),
    ),
    Script("hf_invoices", "hf Trainer, token classification", 1, tempting="no loader workers; logging in each step"),
    Script("lightning_soils", "lightning, spectra", 1, tempting="no loader workers; validation in each epoch"),
    Script("accelerate_sketches", "accelerate, vision, accumulation", 2, tempting="no_sync is missing"),
    Script("fsdp_parcels", "fsdp fully_shard, tabular, accumulation", 2, tempting="gradients are not synchronised"),
    Script("river_locks", "rl PPO", 1, tempting="slow steps every so often; Python loop of the rollout"),
    Script("cinema_evenings", "recommender, two towers", 2, tempting="no DistributedSampler; dense embeddings"),
    Script("weave_gan", "gan, plain loop with an average", 1, tempting="create_graph; detach; the average costs time"),
    Script(
        "road_junctions", "graph, plain loop, frozen encoder", 1, tempting="parameters without gradients; eval mode"
    ),
)
