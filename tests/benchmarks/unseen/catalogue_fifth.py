"""The fifth draw of scripts, by someone who had seen neither rules nor results. Sealed as a whole."""

from __future__ import annotations

from catalogue import Fault, Script

FIFTH = (
    Script(
        "hf_tickets",
        "hf Trainer, text classification, tickets",
        2,
        (
            Fault(
                "batches are drawn at random though lengths differ by tens of times: one long ticket has all others of "
                "its batch padded to it",
                "random batches of very different lengths, group_by_length, dynamic padding waste",
                "main",
                (
                    'train_sampling_strategy="group_by_length" if MENDED',
                    "trainer.train()",
                    "ids = torch.nn.utils.rnn.pad_sequence(",
                    "data_collator=collate",
                ),
                'group by length (train_sampling_strategy="group_by_length"; formerly group_by_length=True), or pack',
                "shorter texts without a word on what is lost; padding to a fixed length; more loader workers; "
                "calling one rank slow",
            ),
        ),
        figure="mean",
    ),
    Script(
        "lightning_gestures",
        "lightning, muscle signals, Mixer",
        1,
        (
            Fault(
                "the norm of the gradient of each parameter is computed and logged by itself in each step, though the "
                "logger writes every fifty",
                "self.log per parameter every step, gradient norms, logging overhead",
                "on_before_optimizer_step",
                (
                    'self.log(f"gradient/{name}"',
                    "for name, parameter in self.named_parameters()",
                    "if self.global_step % self.hparams.watch_every == 0",
                    "watch_every=50 if MENDED",
                    "trainer.fit(model",
                ),
                "only on steps that are written (every log_every_n_steps), or one norm over all parameters",
                "a smaller network; blaming the optimizer or the clipping; no logging at all",
            ),
        ),
    ),
    Script(
        "accelerate_poses",
        "accelerate, diffusion of poses",
        2,
        (
            Fault(
                "the optimizer is written by hand: a dozen passes over each parameter, most of them into new memory",
                "own AdamW implementation, unfused out-of-place optimizer, not torch.optim",
                "step",
                (
                    'state["square"] = beta2 * state["square"]',
                    'state["mean"] = beta1 * state["mean"]',
                    'mean = state["mean"] / (1 - beta1',
                    'square = state["square"] / (1 - beta2',
                    'update = mean / (square.sqrt() + group["eps"])',
                    'p.copy_(p - group["lr"] * update)',
                    "optimizer = DecoupledAdam(",
                    "            optimizer.step()",
                ),
                "torch.optim.AdamW(fused=True), which does the same (or foreach, in place)",
                "another optimizer without a word on what is learned; a smaller network; gradient compression",
            ),
        ),
    ),
    Script(
        "fsdp_turbines",
        "fsdp fully_shard, adaptive clipping, tabular",
        2,
        (
            Fault(
                "the norms of each sharded parameter and of its gradient are reduced by themselves: dozens of tiny "
                "all-reduces in each step",
                "per-parameter DTensor norm full_tensor, many tiny all-reduces, adaptive gradient clipping",
                "clip_adaptively",
                (
                    "length = parameter.grad.norm().full_tensor()",
                    "longest = factor * parameter.norm().full_tensor()",
                    "parameter.grad.mul_(",
                    "for parameter in parameters:",
                    "        clip_adaptively(parameters, args.clip)",
                ),
                "norms of the local shards, all in one vector, and one all-reduce of it",
                "no clipping (it changes what is learned); reshard_after_forward; coarser sharding as the cure",
            ),
        ),
    ),
    Script(
        "old_photographs",
        "vision, colouring with a perceptual loss",
        2,
        (
            Fault(
                "for each of four layers that are compared the fixed network is run again from its beginning",
                "perceptual loss reruns prefix of network for each layer, repeated forward",
                "features",
                (
                    "return [self.network[:at](x) for at in self.at]",
                    "goals = self.features(wanted)",
                    "zip(self.features(made), goals, strict=True)",
                    "args.weight * perceptual(made, colour)",
                    "loss.backward()",
                ),
                "run through the network once and keep what comes out of the layers that are asked for",
                "fewer layers or no perceptual loss (it changes what is learned); no_grad for what was made; training "
                "the fixed network",
            ),
        ),
    ),
    Script(
        "lander_clipped",
        "rl PPO with a copy of the policy",
        1,
        (
            Fault(
                "the copy of the old policy is run for each minibatch of each epoch, though its chances were known "
                "when it acted",
                "old policy forward per minibatch, log-probs not stored in rollout, PPO",
                "main",
                (
                    "logs = old(seen)[0].log_prob(actions)",
                    "old = copy.deepcopy(policy)",
                ),
                "use the log-probabilities that the rollout keeps",
                "fewer epochs or larger minibatches (it changes what is learned); no_grad for the copy (it has it); "
                "blaming the environment",
            ),
        ),
    ),
    Script(
        "column_tables",
        "recommender, columns of kinds, plain loop with argparse",
        1,
        (
            Fault(
                "each of some 150 columns has a table of its own: as many small lookups, backward passes and updates",
                "one nn.Embedding per categorical column, ModuleList loop, many small operations",
                "forward",
                (
                    "table(kinds[:, at]) for at, table in enumerate(self.tables)",
                    "nn.Embedding(size, dim) for size in sizes",
                    "self.look_up = (OneTable if mended(1)",
                    "return self.net(self.look_up(kinds))",
                    "model(kinds), clicked)",
                    "loss.backward()",
                ),
                "one table for all columns, with offsets added to the numbers of the kinds",
                "fewer columns; a smaller batch; sparse gradients for tables this small",
            ),
            Fault(
                "all weights and gradients are looked over for NaN and infinity in each step, a tensor at a time",
                "isnan isinf check of every parameter and gradient every step",
                "check_finite",
                (
                    "if torch.isnan(values).any() or torch.isinf(values).any()",
                    "        check_finite(model, loss, step)",
                ),
                "look at the loss only (or at one norm of all gradients), and at the tensors once it is not finite",
                "no check at all; anomaly detection instead",
            ),
        ),
    ),
    Script(
        "painted_masks",
        "vision, segmentation from painted masks",
        2,
        (
            Fault(
                "painted masks are turned into numbers of kinds whenever they are read, by comparing the whole picture "
                "with each colour in turn",
                "RGB mask to class index per colour in __getitem__, np.all(mask == colour), data loading",
                "to_kinds",
                (
                    "kinds[np.all(painted == colour, axis=-1)] = kind",
                    "for kind, colour in enumerate(PALETTE)",
                    "else to_kinds(self.masks[index])",
                    "for pictures, kinds in loader",
                ),
                "convert the masks once, ahead of training, or look colours up in a table",
                "only more workers where ranks use all cores; fewer kinds; smaller pictures",
            ),
        ),
    ),
    Script(
        "recipe_gpt",
        "text, GPT, plain loop with dataclass",
        1,
        (
            Fault(
                "the heads of attention run one after the other in Python, each with small products, a mask and all "
                "scores kept for the backward pass",
                "attention head by head in ModuleList loop, not batched, no scaled_dot_product_attention",
                "forward",
                (
                    "torch.cat([head(x) for head in self.heads], 2)",
                    "scores = q @ k.transpose(1, 2)",
                    "scores = scores.masked_fill(",
                    "return scores.softmax(-1) @ v",
                    "q, k, v = self.query(x), self.key(x), self.value(x)",
                    "x = x + self.attention(self.before(x))",
                    "F.cross_entropy(model(ids).flatten(0, 1)",
                    "loss.backward()",
                ),
                "one product for all heads and scaled_dot_product_attention(is_causal=True)",
                "fewer heads or shorter texts (it changes what is learned); a smaller vocabulary; a cache of keys",
            ),
        ),
    ),
    Script(
        "choir_voices",
        "audio, separation, plain loop",
        1,
        (
            Fault(
                "the ratio is computed anew for all voices in each of their 24 orders, though there are only 16 pairs",
                "permutation invariant loss over all permutations, pairwise losses recomputed",
                "separation_loss",
                (
                    "si_sdr(made[:, order], wanted).mean(1)",
                    "orders = list(permutations(",
                    "loss = separation_loss(made",
                    "loss.backward()",
                ),
                "the ratios of all pairs once, as a matrix, and sums of those for each order (or an assignment)",
                "fewer voices or only some orders (it changes what is learned); a smaller network",
            ),
        ),
    ),
    Script(
        "rented_bikes",
        "time series, windows with a calendar",
        2,
        (
            Fault(
                "the time of each hour of each window is parsed from text when the window is read",
                "datetime.strptime per time step in __getitem__, calendar features, data loading",
                "calendar",
                (
                    'moment = datetime.strptime(stamp, "%Y-%m-%d %H:%M:%S")',
                    "return [turn(2 * math.pi * place) for place in places",
                    "torch.tensor([calendar(stamp) for stamp in self.stamps[begin:end]])",
                    "self.times(index, end)",
                    "for counts, times, following in loader",
                ),
                "compute the calendar of all hours once, in __init__, and take slices of it",
                "only more workers where ranks use all cores; shorter windows; no calendar",
            ),
        ),
    ),
    Script(
        "jet_neighbours",
        "graph, nearest neighbours of particles",
        1,
        (
            Fault(
                "distances are computed from differences of all pairs in all features: tensors a hundred times as "
                "large as what comes of them",
                "pairwise distances by broadcasting, not cdist or matmul, kNN graph",
                "nearest",
                (
                    "distances = (x.unsqueeze(2) - x.unsqueeze(1)).pow(2).sum(-1)",
                    "found = nearest(places, self.neighbours)",
                    "x = self.second(x, x)",
                    "x = self.third(x, x)",
                    "F.cross_entropy(model(particles), kinds)",
                ),
                "torch.cdist, or squares of norms less twice the products",
                "a fixed graph or fewer neighbours (it changes what is learned); no_grad (it has it); smaller batches",
            ),
        ),
    ),
    Script(
        "tide_levels",
        "time series, GRU, plain loop with argparse",
        1,
        (
            Fault(
                "levels found are a column and levels wanted a row, so that each is compared with each: the model "
                "learns the mean of the batch",
                "loss broadcasting (B, 1) against (B,), shape mismatch, silent",
                "forward",
                (
                    "return level.squeeze(-1) if MENDED else level",
                    "return ((found - wanted) ** 2).mean()",
                    "loss = squared_error(model(record), level)",
                ),
                "squeeze what the model gives (or unsqueeze what is wanted), and compare shapes in the loss",
                "a larger rate or network as the cure; another loss",
                "risk",
            ),
        ),
    ),
    Script(
        "patent_classes",
        "text, plain loop with accumulation",
        2,
        (
            Fault(
                "gradients are set to zero before each micro-batch, so that only the last of four counts",
                "zero_grad inside accumulation loop, accumulated gradients discarded",
                "train_epoch",
                (
                    "optimizer.zero_grad()",
                    "(loss / args.accumulate).backward()",
                    "            optimizer.step()",
                ),
                "zero_grad once for each step of the optimizer, before the first of its micro-batches",
                "praise for the accumulation; a larger rate to make up for it; no_sync is missing",
                "risk",
            ),
        ),
    ),
    Script(
        "accelerate_skin",
        "accelerate, vision",
        2,
        (
            Fault(
                "each process splits the pictures by its own seed: most of what one holds out the other trains on, so "
                "the accuracy is too good",
                "random_split with rank-dependent seed, train and validation overlap across ranks, leak",
                "split",
                (
                    "return random_split(data, parts)",
                    "set_seed(args.seed, device_specific=True)",
                    "train, held_out = split(pictures(",
                ),
                "split with a generator of one seed on all processes",
                "one seed for all that is random (augmentation and dropout would be alike); evaluation on one process",
                "risk",
            ),
        ),
    ),
    Script(
        "whale_calls",
        "audio, Trainer class with early stopping",
        1,
        (
            Fault(
                "the best weights are kept by reference: training goes on in the same tensors, so what is restored are "
                "the last ones",
                "best model state_dict not copied, references, early stopping restores last weights",
                "consider",
                (
                    "if MENDED else self.model.state_dict()",
                    "self.model.load_state_dict(self.weights)",
                    "if self.consider(held_out)",
                ),
                "copy.deepcopy(model.state_dict()), or save it to a file",
                "praise for a cheap copy; rarer checks; more patience",
                "risk",
            ),
        ),
    ),
    Script(
        "good_hf_tiles",
        "hf Trainer, vision transformer",
        2,
        tempting="loader workers; the loss is not divided by num_items; rarer evaluation; find_unused_parameters",
    ),
    Script(
        "good_lightning_names",
        "lightning, text, recurrent with accumulation",
        2,
        tempting="padding (lengths differ little, and packed); sync_dist (in validation only); no_sync is missing",
    ),
    Script(
        "good_accelerate_citations",
        "accelerate, graph, sampled neighbours",
        1,
        tempting="sampling in collate as a bottleneck; loader workers; random access of a large table",
    ),
    Script(
        "good_fsdp_grid",
        "fsdp fully_shard, time series, accumulation",
        2,
        tempting="gradients are reduced for each micro-batch (they are not); reshard_after_forward wastes memory",
    ),
    Script(
        "good_textile_gan",
        "gan, textures, lazy penalty",
        1,
        tempting="slow steps every sixteen (part of the work); the weaver runs twice; create_graph is a leak",
    ),
    Script(
        "good_recurrent_agent",
        "rl actor-critic with memory",
        1,
        tempting="GRUCell in a loop (what is seen depends on what was done); rollouts with gradients",
    ),
    Script(
        "good_radio_stream",
        "audio, IterableDataset, loader worker",
        2,
        tempting="ranks read the same; no DistributedSampler; set_epoch; more workers",
    ),
    Script(
        "good_private_records",
        "tabular, private gradients with torch.func",
        1,
        tempting="zero_grad and backward are missing; batches differ in size; gradients of single records are waste",
    ),
)
