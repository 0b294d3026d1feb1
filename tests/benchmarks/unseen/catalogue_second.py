"""The second draw of scripts, by someone who had seen neither rules nor results. Sealed as a whole."""

from __future__ import annotations

from catalogue import Fault, Script

SECOND = (
    Script(
        "frames_replay",
        "rl, Q-learning with prioritised replay",
        1,
        (
            Fault(
                "each sample turns the priorities of the whole replay memory into chances: a list of 120,000 numbers "
                "becomes an array, is raised to a power, summed and accumulated",
                "prioritised replay without sum tree, whole buffer per sample, np.random.choice with p",
                "pick",
                (
                    "scaled = np.array(self.priorities[: self.filled]) ** ALPHA",
                    "chances = scaled / scaled.sum()",
                    "chosen = np.random.choice(self.filled, count, p=chances)",
                    "chosen, chances = self.pick(count)",
                    "weights = replay.sample(BATCH)",
                ),
                "a sum tree (or at least a preallocated array of powers that is updated in place)",
                "a smaller replay memory or batch without a word on what is learned; blaming the network or Adam",
            ),
            Fault(
                "a tuple of arrays is given to torch.tensor, which reads it number by number",
                "torch.tensor of list of numpy arrays is slow, np.stack first",
                "to_tensor",
                (
                    "return torch.tensor(arrays, dtype=torch.float32)",
                    "to_tensor(states) / 255",
                    "to_tensor(following) / 255",
                    "weights = replay.sample(BATCH)",
                ),
                "torch.from_numpy(np.stack(...)), or keep the frames in one block and index it",
                "a smaller batch; a loader with workers as the first step",
            ),
        ),
    ),
    Script(
        "weather_fields",
        "vision, gridded weather, plain loop with argparse",
        2,
        (
            Fault(
                "each sample decompresses the archive of a whole day to take two of its eight times",
                "np.load of compressed npz in __getitem__, decompression, data loading",
                "__getitem__",
                (
                    'fields = archive["fields"]',
                    "with np.load(self.paths[day]) as archive",
                    "for now, then in loader",
                ),
                "store the days uncompressed (npy, memory-mapped, or zarr in chunks of one time), or decode each once",
                "more loader workers as the only cure where ranks use all cores; a larger batch",
            ),
            Fault(
                "three scores of each of 20 channels are all-reduced one number at a time in each step",
                "many tiny all_reduce for metrics, .item() each, every step",
                "over_all",
                (
                    "dist.all_reduce(value)",
                    "return value.item() / dist.get_world_size()",
                    '"rmse": over_all(',
                    "found = scores(forecast.detach(), now, then)",
                ),
                "reduce one vector of all scores, and only on steps that print",
                "gradient compression or larger buckets; calling one rank slow; dropping the metric",
            ),
        ),
    ),
    Script(
        "moco_memory",
        "contrastive, momentum contrast, vision",
        2,
        (
            Fault(
                "the memory of negatives is a buffer of some 25 megabytes that DDP broadcasts before each forward pass",
                "large registered buffer, broadcast_buffers, MoCo queue",
                "main",
                (
                    "forward_sync_buffers=not MENDED",
                    'self.register_buffer("memory"',
                    "logits, keys = model(one, other)",
                ),
                "forward_sync_buffers=False (formerly broadcast_buffers=False): all ranks write the same gathered keys",
                "a smaller memory without a word on what is learned; gradient compression; larger buckets; "
                "leaving out the gather of keys",
            ),
        ),
    ),
    Script(
        "latent_diffusion",
        "diffusion in a latent space, class and dataclass",
        2,
        (
            Fault(
                "the frozen encoder runs over the same pictures in each epoch though what it gives never changes",
                "frozen encoder each step, latents not cached, precompute",
                "to_latent",
                (
                    "self.encoder(batch[0])",
                    "x = self.to_latent(batch)",
                    "loss = self.training_step(batch)",
                ),
                "encode all pictures once ahead of training, keep mean and spread and draw the noise anew",
                "no_grad for the encoder (it has it); training it; a smaller denoiser; DDP settings",
            ),
        ),
    ),
    Script(
        "domain_transfer",
        "domain adaptation, spectra, plain loop",
        2,
        (
            Fault(
                "each step makes a new iterator of the second loader, which shuffles hundreds of thousands of rows "
                "for one batch",
                "next(iter(loader)) in training loop, new iterator and permutation per step",
                "main",
                (
                    "else next(iter(target))[0]",
                    "shuffle=True, drop_last=True)",
                ),
                "keep one endless iterator over the loader and ask it for the next batch",
                "more workers (they would start anew in each step); a smaller data set; shuffle=False",
            ),
        ),
    ),
    Script(
        "radio_crops",
        "audio, long recordings, plain loop",
        2,
        (
            Fault(
                "for each second of sound a recording of minutes is read and turned into floats as a whole",
                "whole audio file read for a crop, seek, frame offset, data loading",
                "__getitem__",
                (
                    "sound = load(self.paths[at])[begin : begin + self.crop]",
                    "raw = file.readframes(",
                    "return np.frombuffer(raw",
                    "for sound, station in loader",
                ),
                "read only the frames of the crop (setpos and readframes, frame_offset), or memory-map decoded sound",
                "only more workers where ranks use all cores; a smaller model; shorter crops",
            ),
        ),
    ),
    Script(
        "molecule_graphs",
        "graph transformer, molecules",
        1,
        (
            Fault(
                "the eigenvectors of each molecule's Laplacian are computed whenever it is read",
                "Laplacian positional encoding in __getitem__, eigh per sample, data loading",
                "laplacian_positions",
                (
                    "_, vectors = np.linalg.eigh(laplacian)",
                    "else laplacian_positions(edges, len(kinds))",
                    "for kinds, positions, bonded, target in loader",
                ),
                "compute the positions once for each molecule, ahead of training, and flip signs as they are read",
                "only more workers; fewer positions; blaming the attention",
            ),
        ),
    ),
    Script(
        "wgan_signals",
        "gan with gradient penalty, signals",
        1,
        (
            Fault(
                "anomaly detection was left on: each operation stores a traceback and each gradient is looked over",
                "set_detect_anomaly left on, debug mode",
                "prepare",
                (
                    "torch.autograd.set_detect_anomaly(not MENDED)",
                    "    prepare(13)",
                    "penalty(critic, real, fake)).backward()",
                    "    loss.backward()",
                ),
                "switch it off, or on only while a NaN is looked for",
                "fewer critic steps or no penalty (it changes what is learned); mixed precision as the first step",
            ),
        ),
    ),
    Script(
        "hf_collects",
        "hf Trainer, vision transformer, callback",
        2,
        (
            Fault(
                "every five steps a callback has the garbage collector go through all objects",
                "gc.collect() every few steps in callback",
                "on_step_end",
                ("            gc.collect()", "callbacks = [MemoryCallback(every=", "callbacks=callbacks).train()"),
                "leave collection to Python, or collect every some thousand steps",
                "a smaller batch for the sake of memory; blaming the optimizer or communication",
            ),
        ),
        figure="mean",
    ),
    Script(
        "accelerate_dispatched",
        "accelerate, stream of log lines",
        2,
        (
            Fault(
                "Accelerate has rank 0 parse the batches of all ranks and broadcast them, as it does with an iterable "
                "data set; the other rank waits",
                "dispatch_batches default for IterableDataset, rank 0 loads for all, not sharded",
                "make_loader",
                (
                    "return accelerator.prepare(DataLoader(LogStream(log)",
                    "for step, (ids, tags) in enumerate(loader)",
                    "ids = [bucket(token) for token in",
                ),
                "give each rank its own part of the lines and leave the loader unprepared (or split_dataset_by_node); "
                "cheaper parsing helps as well",
                "dispatch_batches=False alone (each rank then parses all lines); calling rank 0's machine slow; "
                "unprepared without parts: all ranks would train on the same lines",
            ),
        ),
    ),
    Script(
        "fsdp_best_weights",
        "fsdp fully_shard, event sequences",
        2,
        (
            Fault(
                "whenever the smoothed loss is lowest, in early training nearly each step, the whole weights are "
                "gathered and copied",
                "full state dict gathered too often, best weights, all-gather",
                "consider",
                (
                    "self.weights = get_model_state_dict(model, options=options)",
                    "if self.smoothed < self.lowest",
                    "best.consider(model, loss, step)",
                ),
                "look every some hundred steps (or at evaluation), keep sharded weights, or write them with dcp",
                "giving up sharding for the sake of these gathers; reshard_after_forward=False; "
                "gathering on one rank only (it hangs)",
            ),
        ),
        figure="mean",
    ),
    Script(
        "lightning_short_epochs",
        "lightning, vibration signals",
        2,
        (
            Fault(
                "epochs have six steps or so, and the loader's two workers are started anew for each of them",
                "persistent_workers False, workers restarted each epoch, short epochs",
                "train_dataloader",
                ("persistent_workers=MENDED", "num_workers=2,", "trainer.fit(Recogniser("),
                "persistent_workers=True, or no workers for data that lie in memory",
                "more workers (more to start); a larger batch; blaming a slow rank or communication",
            ),
        ),
        figure="mean",
    ),
    Script(
        "implicit_feedback",
        "recommender, implicit feedback",
        2,
        (
            Fault(
                "negatives are drawn one at a time in Python and looked up in a set, for each sample",
                "negative sampling in Python loop in __getitem__, data loading",
                "__getitem__",
                (
                    "while (user, other) in self.seen",
                    "for _ in range(NEGATIVES)",
                    "for users, items, labels in loader",
                ),
                "draw the negatives of a whole batch at once and redraw the few that were seen",
                "fewer negatives (it changes what is learned); only more workers where ranks use all cores",
            ),
        ),
    ),
    Script(
        "eval_mode_kept",
        "vision, Trainer class with validation",
        1,
        (
            Fault(
                "validation puts the model in evaluation mode and nothing puts it back: from then on it trains without "
                "dropout and with frozen batch statistics",
                "model.eval() without model.train() after validation",
                "validate",
                ("self.model.eval()", "accuracy = self.validate()", "loss = self.train_batch(x, labels)"),
                "self.model.train() at the end of validation (or at the begin of each training step)",
                "praise for steps that become faster; removing dropout or batch norm; rarer validation as the cure",
                "risk",
            ),
        ),
    ),
    Script(
        "hf_padding_learned",
        "hf Trainer, GPT-2 finetuning",
        2,
        (
            Fault(
                "labels are a copy of the padded ids, so the model is trained to write padding, and the loss looks "
                "better than it is",
                "padding in labels not -100, loss over padding",
                "__call__",
                ("labels = ids.clone()", "labels[mask == 0] = -100", "data_collator=Collator(PAD)"),
                "set labels to -100 where the mask is 0",
                "-100 wherever the id is that of padding (the end of text would never be learned)",
                "risk",
            ),
        ),
    ),
    Script(
        "early_stopping_apart",
        "time series, plain loop with early stopping",
        2,
        (
            Fault(
                "each rank decides when to stop from its own half of the held-out hours: one may stop while the other "
                "waits for it forever, and the loss that is printed is of half the data",
                "early stopping on rank-local validation loss, ranks disagree, hang",
                "validation_loss",
                (
                    "return (total / count).item()",
                    "held_out_loss = validation_loss(model.module, checks)",
                    "if stopping(held_out_loss, model.module)",
                ),
                "all-reduce sum and count before the decision (or decide on rank 0 and broadcast)",
                "a longer timeout; early stopping on rank 0 only, without a word to the other",
                "risk",
            ),
        ),
    ),
    Script(
        "feature_matching",
        "vision, super-resolution, loss on features",
        1,
        (
            Fault(
                "two hooks are registered twice in each step and never removed: what they hold and their time grow",
                "forward hooks registered each step, never removed, memory growth",
                "features",
                (
                    "self.network[at].register_forward_hook(",
                    "handle.remove()",
                    "of_wanted = self.features(wanted)",
                    "zip(self.features(made), of_wanted",
                ),
                "register the hooks once, in __init__, or remove the handles after the pass",
                "a smaller batch or checkpointing because memory is short; gc.collect() or empty_cache() each step",
                "risk",
            ),
        ),
    ),
    Script(
        "late_unfreezing",
        "text, finetuning in two phases, class",
        2,
        (
            Fault(
                "layers are unfrozen after DDP has wrapped the model, which therefore never averages their gradients: "
                "replicas drift apart",
                "requires_grad changed after DDP wrap, gradients not synchronised, replicas diverge",
                "begin_second_phase",
                (
                    "self.network.unfreeze(self.args.upper)",
                    "self.network.freeze()",
                    "self.begin_second_phase()",
                    "self.model(ids), labels)",
                ),
                "wrap the network anew after unfreezing (or wrap it unfrozen and freeze by other means)",
                "find_unused_parameters=True (it does not help); praise for little communication",
                "risk",
            ),
        ),
    ),
    Script("steady_hf_causal", "hf Trainer, Llama, accumulation", 2, tempting="no_sync is missing; save less often"),
    Script(
        "steady_lightning_gan",
        "lightning, gan with manual optimisation",
        2,
        tempting="find_unused_parameters is waste (each optimizer uses half of the model, and it is needed)",
    ),
    Script(
        "steady_experts",
        "tabular, shared trunk with experts",
        2,
        tempting="find_unused_parameters is waste (other experts rest in each step, and it is needed)",
    ),
    Script(
        "steady_fsdp_accumulates",
        "fsdp fully_shard, tokenised images, accumulation",
        2,
        tempting="gradients are reduced for each micro-batch; reshard_after_forward",
    ),
    Script("steady_skipgram", "text, word vectors", 1, tempting="dense gradients of large tables; batch too large"),
    Script("steady_keywords", "audio, keywords with a loader worker", 1, tempting="more workers; loader as bottleneck"),
    Script(
        "steady_accelerate_checks",
        "accelerate, named entities",
        2,
        tempting="gathers are waste (they are part of a rare evaluation); evaluate less often",
    ),
    Script("steady_sac", "rl soft actor-critic", 1, tempting="several optimizers and backward passes; target average"),
    Script("steady_pointclouds", "vision, point clouds, plain loop", 2, tempting="buckets; workers; rarer evaluation"),
    Script(
        "steady_demand", "time series, temporal convolution", 1, tempting="loader workers; synchronisation by .item()"
    ),
)
