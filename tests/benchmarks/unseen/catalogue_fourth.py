"""The fourth draw of scripts, by someone who had seen neither rules nor results. Sealed as a whole."""

from __future__ import annotations

from catalogue import Fault, Script

FOURTH = (
    Script(
        "street_crops",
        "vision, street signs, plain loop with argparse",
        2,
        (
            Fault(
                "pictures are turned, coloured and blurred at full size, and all but a small crop of that is then "
                "thrown away",
                "augmentation before crop, order of transforms, PIL, data loading",
                "build_transform",
                (
                    "return Compose(Turn(), Colour(), Blur(), RandomCrop(crop), to_tensor)",
                    "image.rotate(random.uniform(",
                    "image.filter(ImageFilter.GaussianBlur(",
                    "return self.transform(self.images[index])",
                    "for images, signs in loader",
                ),
                "crop first (with a margin for the turn, if need be), and augment what is left of the picture",
                "more loader workers as the only cure where ranks use all cores; no augmentation; a larger batch",
            ),
        ),
    ),
    Script(
        "masked_words",
        "text, masked language model, plain loop with argparse",
        2,
        (
            Fault(
                "logits over all words are computed for each place of each sentence though the loss looks only at the "
                "15 % that are masked",
                "MLM head over all positions, vocabulary projection of unmasked tokens, ignore_index",
                "forward",
                (
                    "logits = F.linear(self.transform(x), self.words.weight, self.bias)",
                    "return F.cross_entropy(logits.flatten(0, -2)",
                    "loss = model(ids, labels)",
                    "loss.backward()",
                ),
                "pick the masked places first, and put only those through the head and the loss",
                "fewer words or a smaller encoder; a larger batch; blaming DDP",
            ),
        ),
    ),
    Script(
        "story_rewards",
        "rl REINFORCE, language model of transformers, plain loop",
        1,
        (
            Fault(
                "stories are written without a cache of keys and values: each new token runs the whole text again",
                "generate with use_cache=False, no KV cache, sampling dominates",
                "policy",
                (
                    "use_cache=MENDED",
                    "return model.generate(",
                    "stories = tell(model, prompts.next(), args)",
                ),
                "use_cache=True for generate (in the config or in the call)",
                "shorter stories or fewer of them (it changes what is learned); blaming the backward or the optimizer",
            ),
        ),
    ),
    Script(
        "heating_cells",
        "time series, Trainer class",
        1,
        (
            Fault(
                "an LSTM is run hour by hour through LSTMCell in Python: hundreds of small operations forward and "
                "backward",
                "nn.LSTMCell in Python loop over time, not nn.LSTM, many small operations",
                "forward",
                (
                    "h, c = self.cell(x[:, hour], (h, c))",
                    "for hour in range(x.shape[1])",
                    "loss = F.mse_loss(self.model(weather), heat)",
                    "loss.backward()",
                ),
                "nn.LSTM over the whole sequence: the same sums in one call (the weights can be taken over)",
                "fewer hours or a smaller width; truncated backpropagation as the first step; more workers",
            ),
        ),
    ),
    Script(
        "hf_attention_maps",
        "hf Trainer, text classification, contracts",
        2,
        (
            Fault(
                "the eager attention is asked for so that maps can be looked at once, after training: training "
                "computes and keeps all scores",
                "attn_implementation eager, attention matrix materialised, not sdpa",
                "build",
                (
                    'attn_implementation="eager" if look else "sdpa"',
                    "model = build(look=not MENDED)",
                    "trainer.train()",
                ),
                "train with sdpa and switch to eager for the few texts that are looked at",
                "shorter texts; gradient checkpointing; a smaller batch; blaming DDP or the loader",
            ),
        ),
    ),
    Script(
        "fsdp_two_views",
        "fsdp fully_shard, contrastive, two views",
        2,
        (
            Fault(
                "parameters are freed after each forward pass though memory is ample: two passes and the backward "
                "passes gather all of them again and again",
                "reshard_after_forward=True, repeated all-gather, two forward passes per step",
                "shard",
                (
                    "fully_shard(block, mesh=mesh, reshard_after_forward=keep)",
                    "keep = not MENDED",
                    "return fully_shard(model, mesh=mesh, reshard_after_forward=keep)",
                    "p1, z1 = model(view(x))",
                    "p2, z2 = model(view(x))",
                    "loss.backward()",
                ),
                "reshard_after_forward=False where memory allows, or one pass over both views put together",
                "sharding finer; a smaller model; one view only",
            ),
        ),
    ),
    Script(
        "lightning_churn",
        "lightning, tabular, metrics of torchmetrics",
        1,
        (
            Fault(
                "areas under the curves are computed in each step over all samples of the epoch so far: they are "
                "sorted again and again, and it grows",
                "torchmetrics compute() every step, AUROC over accumulated state, growing step time",
                "watch",
                (
                    'self.log("auc", self.train_auc.compute())',
                    'self.log("precision", self.train_ap.compute())',
                    "self.watch(logits.detach(), left.int())",
                ),
                "update in each step and compute at the end of the epoch (or thresholds, for a binned curve)",
                "a smaller network; no metric at all; blaming the loader; looking for a memory leak in the model",
            ),
        ),
        figure="mean",
    ),
    Script(
        "accelerate_whole_checks",
        "accelerate, vision, segmentation",
        2,
        (
            Fault(
                "the loader of held-out slides is not prepared: each process computes the score of all of them by "
                "itself, often",
                "validation loader not prepared, redundant evaluation on all ranks, evaluation too often",
                "held_out_score",
                (
                    "score = dice(model(pictures), masks)",
                    "for pictures, masks in loader:",
                    "score = held_out_score(accelerator, model, held_out)",
                    "if step % args.check_every == 0",
                    "held_out = DataLoader(slides(",
                    "held_out = accelerator.prepare(held_out)",
                ),
                "prepare the held-out loader, gather_for_metrics the scores; and check more rarely",
                "scoring on the main process while others wait; calling one rank slow; no evaluation",
            ),
        ),
        figure="mean",
    ),
    Script(
        "season_translation",
        "gan, pictures to pictures, class",
        2,
        (
            Fault(
                "in the painter's step gradients of the judge are computed as well, averaged over the ranks and then "
                "thrown away",
                "discriminator requires grad in generator step, wasted gradients and all-reduce",
                "painter_step",
                (
                    "judged = self.judge(summer, made)",
                    "loss = 10 * F.l1_loss(made, winter) - judged.mean()",
                    "self.painter_step(summer, winter, made)",
                ),
                "requires_grad_(False) for the judge in the painter's step, and its bare module for the pass",
                "detach or no_grad around the judge (the painter would learn nothing from it); find_unused_parameters",
            ),
        ),
    ),
    Script(
        "next_song",
        "recommender, sessions, plain loop",
        1,
        (
            Fault(
                "songs are looked up by a product of one-hot rows with the whole table, forward and backward",
                "one_hot matmul instead of embedding lookup",
                "look_up",
                (
                    "return F.one_hot(played, self.songs).float() @ self.vectors",
                    "x = self.look_up(played)",
                    "scores = model(rows[:, :-1])",
                    "loss.backward()",
                ),
                "F.embedding (or nn.Embedding): the same rows without the product",
                "fewer songs; a smaller batch; mixed precision as the first step",
            ),
            Fault(
                "the hit rate sorts the scores of all songs for each session in each step, to look at the best twenty",
                "full argsort for top-k metric, every step",
                "update",
                (
                    "best = scores.argsort(dim=1, descending=True)",
                    "ranking.update(scores, rows[:, -1])",
                ),
                "topk (or the rank of the right song, by counting higher scores), and every so many steps",
                "dropping the metric altogether; blaming .item() or synchronisation",
            ),
        ),
    ),
    Script(
        "pooled_proteins",
        "graph, classification of whole graphs",
        1,
        (
            Fault(
                "nodes are pooled graph by graph in Python, each by a mask over the nodes of the whole batch",
                "readout loop over graphs with boolean mask, no scatter, many small operations",
                "pool",
                (
                    "nodes = x[graph == at]",
                    "for at in range(count)",
                    "pooled.append(torch.cat([nodes.mean(0), nodes.max(0).values]))",
                    "logits = logits + head(pool(x",
                    'loss = F.cross_entropy(model(batch), batch["labels"])',
                    "loss.backward()",
                ),
                "scatter_reduce (or index_add, segment_reduce) over all nodes at once",
                "smaller batches; fewer layers; precomputed graphs as the first step",
            ),
        ),
    ),
    Script(
        "keypoint_records",
        "vision, keypoints, plain loop with records",
        2,
        (
            Fault(
                "each record is copied deeply, with outlines of hundreds of points that nothing reads, whenever it is "
                "loaded",
                "copy.deepcopy of annotation dict in __getitem__, data loading",
                "__getitem__",
                (
                    "copy.deepcopy(self.records[index])",
                    "for pictures, joints in loader",
                ),
                "no copy, as the flip changes a new tensor only; or arrays of joints made once, without the outlines",
                "only more workers where ranks use all cores; a larger batch (records cost the same each)",
            ),
        ),
    ),
    Script(
        "listed_layers",
        "graph, traffic on roads, plain loop",
        1,
        (
            Fault(
                "the layers are kept in a plain list: neither the optimizer nor train(), to() or a checkpoint knows "
                "of them, and they stay as they were drawn",
                "modules in Python list not nn.ModuleList, parameters not registered, not trained",
                "__init__",
                (
                    "self.layers = nn.ModuleList(layers) if MENDED else layers",
                    "optimizer = torch.optim.AdamW(model.parameters()",
                ),
                "nn.ModuleList(layers)",
                "praise for few parameters; a larger rate; freezing more",
                "risk",
            ),
        ),
    ),
    Script(
        "noisy_speech",
        "audio, noise removal, loader workers",
        2,
        (
            Fault(
                "the data set's own generator is copied into each worker, seeded alike on all ranks and started again "
                "with each epoch: the same noise comes again and again",
                "numpy generator in Dataset copied to workers, identical augmentation per worker, rank and epoch",
                "dice",
                (
                    "return self.rng",
                    "self.rng = np.random.default_rng(seed)",
                    "clean, dice = self.clean[index], self.dice()",
                    "sampler=sampler, num_workers=2",
                ),
                "seed a generator in each worker from the worker's torch seed (worker_init_fn, get_worker_info), "
                "which differs by rank, worker and epoch",
                "no workers as the only cure (ranks would still be alike); persistent_workers alone",
                "risk",
            ),
        ),
    ),
    Script(
        "leaf_chances",
        "vision, plant diseases, Trainer class",
        2,
        (
            Fault(
                "the model gives chances, and the cross entropy takes the softmax of them again: gradients are small "
                "and the loss cannot fall far",
                "softmax before CrossEntropyLoss, double softmax",
                "forward",
                (
                    "return torch.softmax(logits, dim=1)",
                    "self.criterion = nn.CrossEntropyLoss(",
                    "loss = self.criterion(found, diseases)",
                ),
                "return the logits, and take the softmax only where chances are shown",
                "a larger rate to make up for it; more epochs; no label smoothing",
                "risk",
            ),
        ),
    ),
    Script(
        "lightning_warmup",
        "lightning, text, one-cycle schedule",
        2,
        (
            Fault(
                "the schedule counts all steps of the training but steps once an epoch, as is Lightning's default: the "
                "rate never leaves the begin of its warm-up",
                "lr scheduler interval epoch not step, OneCycleLR total_steps, warmup never ends",
                "configure_optimizers",
                (
                    "return [optimizer], [schedule]",
                    "total_steps=self.trainer.estimated_stepping_batches",
                    '"interval": "step"',
                ),
                'a dictionary with "interval": "step" for the schedule',
                "a larger rate to make up for it; more epochs; no schedule",
                "risk",
            ),
        ),
    ),
    Script(
        "calm_hf_summaries",
        "hf Trainer, T5, summaries",
        2,
        tempting="padding (lengths differ little); group by length; rarer evaluation; find_unused_parameters",
    ),
    Script(
        "calm_lightning_machines",
        "lightning, audio, machines",
        1,
        tempting="loader workers; spectrograms ahead of training; metrics in each step (they are counts)",
    ),
    Script(
        "calm_accelerate_ranker",
        "accelerate, adapters, ranking",
        1,
        tempting="frozen parameters are a mistake; two passes in one; backward through frozen layers is waste",
    ),
    Script(
        "calm_fsdp_events",
        "fsdp fully_shard, causal model of events",
        2,
        tempting="reshard_after_forward; clipping and full_tensor (rare); weights gathered (once)",
    ),
    Script("calm_relations", "graph, relations, full batch", 1, tempting="loop over relations; sparse is slow"),
    Script(
        "calm_ink_gan",
        "gan, letters, two wrapped models",
        2,
        tempting="the generator bypasses DDP; two passes of the generator; requires_grad switched in each step",
    ),
    Script("calm_warehouse", "rl advantage actor-critic", 1, tempting="loop over the horizon; acting twice"),
    Script(
        "calm_letters",
        "text, letters, own batch sampler",
        2,
        tempting="uneven ranks; padding; no distributed sampler; same order each epoch",
    ),
)
