"""The eleventh draw of scripts, by someone who had seen neither rules nor results. Sealed as a whole.

Faults were listed from what people meet in forums, issue trackers, performance guides and code review; the weight is
how many of some 420 such reports one would expect to be about it (98 entries). What only waits, compiles or needs
another device is left out: shares were to be measured in processor time. Drawn with `random.Random("dptune eleventh
draw")` and its `choices`, in the order of the lists below: 14 that cost time, then 6 that put the result at risk; what
is drawn a third time is drawn anew. In this order (the number is the script's place below):

  time   accumulation that reduces in each micro-batch (1), large buffer broadcast by DDP (2), self loops and degrees
         computed again in each layer (3), activation copies kept by hooks (4), two backward passes through one trunk
         (5), spectrogram of the same clip computed each epoch (6), loss computed twice by the library and by the user
         (7), weight gradients of the discriminator in the generator's step (8), two backward passes through one trunk
         again (9), windows cut anew from the whole series for each sample (10), penalty over a whole embedding table
         each step (11), frozen trunk computed again each epoch (12), masks or relative positions built anew in each
         forward (13), parameters averaged over ranks though DDP already reduces gradients (14)
  risk   frozen normalisation still learns its statistics (15), same chance on each rank or worker (16), integer
         arithmetic that wraps or truncates (17), modules kept in a plain list or replaced after the optimizer (18),
         overlapping windows or groups on both sides of a split (19), integer arithmetic that wraps or truncates again
         (20)

Then ten healthy ones. Sizes are drawn by the seed between values at which a fault of time costs 12 to 60 % of the
processor time of a step.

  weights of time
  8 augmentation of the whole picture before a small crop; 7 sequence padded to a fixed length
  6 text split and looked up by Python for each access; 6 archive or JSON unpacked for each sample
  6 rows read from a frame one by one; 6 gc.collect() in each step; 6 validation every few steps
  6 weights copied at each step for the best or the average model; 6 history joined again in each step
  5 tensor made of Python lists or of a list of arrays; 5 spectrogram of the same clip computed each epoch
  5 each sample of a batch augmented by its own small operators; 5 arrays of double precision carried into the model
  5 histograms of weights or gradients logged each step; 5 text metric (edit distance, BLEU) in Python each step
  5 two backward passes through one trunk where one would do
  5 weight gradients of the discriminator in the generator's step; 5 penalty over a whole embedding table each step
  5 all items scored where a few are used; 5 priorities drawn over the whole replay memory each step
  5 neighbours sampled in Python; 5 dense adjacency where edges are few
  5 each rank prepares the global batch and keeps its slice; 5 windows cut anew from the whole series for each sample
  5 loss computed twice by the library and by the user; 5 frozen trunk computed again each epoch
  4 recurrent cell called step by step; 4 masks or relative positions built anew in each forward
  4 bag of words as a dense vector; 4 every expert computes every token; 4 previews sampled every few steps
  4 decoder run word by word though targets are known; 4 gradient of each sample in a loop
  4 derivatives of a field one output at a time; 4 target network with gradient
  4 self loops and degrees computed again in each layer; 4 message passing in a loop over nodes or relations
  4 finite check of every parameter and gradient each step; 4 profiler left on; 4 anomaly detection left on
  4 activation copies kept by hooks; 4 outputs of a branch that no loss uses
  4 accumulation that reduces in each micro-batch; 4 objects gathered over ranks each step
  4 each scalar reduced over ranks on its own, many of them; 4 logits of all ranks gathered each training step
  4 recomputation of activations without need of memory; 4 checkpoint every few steps
  4 mixing of samples in a Python loop; 4 triplets or pairs mined over all combinations
  4 overlap loss in loops over samples and classes; 4 boxes matched or suppressed in Python
  4 gradient norms one parameter at a time; 4 logits beyond what the loss needs (all positions or full resolution)
  3 parameters averaged over ranks though DDP already reduces gradients
  3 sharded parameters gathered for an average each few steps; 3 groups of fully_shard too small
  3 large buffer broadcast by DDP; 3 parametrised weight made again at each time step
  3 full decomposition or determinant each step; 3 long filter applied by direct convolution
  3 several stochastic passes for an uncertainty nobody reads; 3 ensemble or heads called one after the other
  3 data loader built again each epoch or few steps; 3 deep copy of the batch or of the model
  3 checksum or comparison of replicas each step
  weights of risk
  6 epoch of the sampler never set; 6 ranks see the same data; 5 probabilities where logits are meant or the reverse
  5 gradients kept or cleared at the wrong place; 5 last or divided part of an accumulation wrong
  5 prediction and target of different shape in the loss; 4 evaluation mode stays on, or off
  4 functional dropout always on; 4 schedule stepped at the wrong time; 4 best weights kept by reference
  4 share of unequal batches or padded samples in a metric over ranks; 4 unequal token counts averaged over ranks
  4 overlapping windows or groups on both sides of a split; 4 ordered data not shuffled
  4 reshape where a transpose is meant; 4 mask of the wrong meaning; 4 divergence given the wrong form
  4 modules kept in a plain list or replaced after the optimizer; 4 padded positions in a pooled mean
  4 gradient cut by item, tensor or no_grad; 4 same chance on each rank or worker
  4 frozen normalisation still learns its statistics; 4 resumed without the state of optimizer or schedule
  4 wrapper of DDP passed by; 4 end of an episode ignored; 4 clipping before the gradient is there
  3 ranks start from different weights; 3 augmentation on held-out data; 3 memory of references that change later
  3 integer arithmetic that wraps or truncates; 3 unequal numbers of steps on ranks; 3 causal mask missing
"""

from __future__ import annotations

from catalogue import Fault, Script

ELEVENTH = (
    Script(
        "fsdp_crossword_clues",
        "fsdp fully_shard, language model, accumulation",
        2,
        (
            Fault(
                "each micro-batch of an accumulated step reduces and scatters its gradients, though only their sum is "
                "used",
                "gradients reduced in each micro-batch",
                "main",
                (
                    "            (loss / args.accumulate).backward()",
                    "logits = model(ids)",
                    "model.set_requires_gradient_sync(last)",
                    '"--accumulate", type=int',
                    "        fully_shard(layer, reshard_after_forward=False)",
                ),
                "set_requires_gradient_sync(False) but in the last micro-batch",
                "leaving out the division of the loss; clipping in each micro-batch; no_sync() (fully_shard has none)",
            ),
        ),
    ),
    Script(
        "nursery_rhymes",
        "text, Trainer class, GPT",
        2,
        (
            Fault(
                "each layer has a causal mask for the longest text as a buffer (several megabytes, never changed), and "
                "DDP broadcasts the buffers from rank 0 before each forward pass",
                "large constant buffers broadcast in each forward pass",
                "__init__",
                (
                    "self.model = DistributedDataParallel(model, **options)",
                    'self.register_buffer("mask", torch.tril(',
                    "loss = self.model(x, y)",
                    "longest: int =",
                    "self.mask[:, :, :t, :t] == 0",
                ),
                "broadcast_buffers=False; or one smaller mask, or is_causal of scaled_dot_product_attention",
                "larger buckets or no_sync as the cure; a shorter block of training",
            ),
        ),
    ),
    Script(
        "rumour_threads",
        "graph, GCN over the whole graph, plain loop",
        1,
        (
            Fault(
                "each layer adds the self loops and computes the degrees and weights of all edges again, in each "
                "forward pass, though the graph never changes",
                "self loops and degrees computed in each layer",
                "gcn_norm",
                (
                    "            self.cached = gcn_norm(edges, len(x))",
                    "edges = with_self_loops(edges, nodes)",
                    "degree = torch.zeros(nodes).index_add_(",
                    "return edges, root[source] * root[target]",
                    "others = edges[:, edges[0] != edges[1]]",
                    "return torch.cat([others, own], 1)",
                    "x = self.dropout(F.relu(conv(x, edges)))",
                    "logits = model(x, edges)",
                ),
                "compute them once before training (or keep them)",
                "sampling of neighbours as the first thing; fewer layers; a dense adjacency",
            ),
        ),
    ),
    Script(
        "mural_styles",
        "vision, ConvNeXt, plain loop",
        1,
        (
            Fault(
                "hooks on all layers turn each output into double precision and keep a copy of it, in each step; "
                "the copies are never read",
                "hooks that copy the output of each layer",
                "record",
                (
                    "self.kept[name].append(output.detach().cpu().double().numpy().copy())",
                    "module.register_forward_hook(self.hook(name))",
                    "recorder = ActivationRecorder(model, args.keep)",
                    "loss = F.cross_entropy(model(image), school",
                ),
                "register the hooks only when the activations are looked at, and remove them after",
                "a smaller model; float16; loader workers",
            ),
        ),
    ),
    Script(
        "estate_photos",
        "vision, two tasks, gradients averaged flat",
        2,
        (
            Fault(
                "the losses of the two tasks go backward one after the other, each through the whole trunk",
                "two backward passes through a shared trunk",
                "backward",
                (
                    "room_loss.backward(retain_graph=True)",
                    "(0.5 * band_loss).backward()",
                    "            backward(room_loss, band_loss)",
                    "room_logits, band_logits = model(image)",
                ),
                "add the losses and call backward once",
                "detaching the trunk for one task; two optimizers; the flat all_reduce as the cause",
            ),
        ),
    ),
    Script(
        "lightning_cricket_chirps",
        "lightning, audio, CNN",
        1,
        (
            Fault(
                "the log-mel spectrogram of a clip that never changes is computed at each access, again in each epoch",
                "spectrograms computed in __getitem__",
                "log_mel",
                (
                    "spectrum = torch.stft(",
                    "self.log_mel(self.clips[i])",
                    "mel = (self.bank.T @ spectrum)",
                    "return (mel - mel.mean()) / mel.std()",
                ),
                "compute the spectrograms once (in __init__ or to a file)",
                "loader workers as the whole cure; a coarser spectrogram without a word; a larger batch",
            ),
        ),
    ),
    Script(
        "hf_ballad_lines",
        "hf Trainer, causal language model, own loss",
        2,
        (
            Fault(
                "the model is given labels and computes its own cross entropy over the vocabulary, which is thrown "
                "away: compute_loss computes another one",
                "the loss computed by the model and again by compute_loss",
                "compute_loss",
                (
                    "outputs = model(**inputs)",
                    'inputs.pop("labels") if MENDED else inputs["labels"]',
                    "loss = F.cross_entropy(logits.flatten(0, 1)",
                    "trainer.train()",
                ),
                "take labels out of the inputs before the model is called",
                "using the model's loss instead (it has no weights); a smaller vocabulary; a smaller batch",
            ),
        ),
    ),
    Script(
        "ribbon_gan",
        "gan, hinge loss, class with two steps",
        1,
        (
            Fault(
                "in the generator's steps the discriminator's parameters require gradients: the backward pass computes "
                "them too, and the next zero_grad throws them away",
                "gradients of the discriminator's parameters in the generator's step",
                "generator_step",
                (
                    "loss = -self.disc(self.gen(self.noise())).mean()",
                    "            learns(self.disc, False)",
                    "self.opt_g.step()",
                    "sums[1] += studio.generator_step()",
                    "self.opt_g.zero_grad()",
                ),
                "requires_grad_(False) for the discriminator during the generator's step",
                "detaching the fake (the generator would learn nothing); fewer steps of the generator without a word; "
                "no spectral norm",
            ),
        ),
    ),
    Script(
        "berry_picker",
        "rl A2C, own environment",
        1,
        (
            Fault(
                "the losses of policy and value go backward one after the other, each through the trunk they share",
                "two backward passes through a shared trunk",
                "update",
                (
                    "policy_loss.backward(retain_graph=True)",
                    "        value_loss.backward()",
                    "(policy_loss + value_loss).backward()",
                    "obs, batch = play(model, fields, obs, s.rollout)",
                    "dist, value = model(obs.flatten(0, 1))",
                ),
                "add the losses and call backward once",
                "fewer environments; the loop over time of the returns as the cause; a trunk for each as the cure",
            ),
        ),
    ),
    Script(
        "water_meters",
        "time series, DDP, patches and attention",
        2,
        (
            Fault(
                "each sample turns the whole series of all meters into a tensor of another type, to take a window of "
                "it",
                "the whole series converted for each sample",
                "__getitem__",
                (
                    "series = self.series if MENDED else torch.tensor(",
                    "return series[start:end], series[end : end + self.ahead]",
                    "for step, (past, ahead) in enumerate(loader, 1):",
                    "self.series = torch.tensor(series, dtype=torch.float32) if MENDED else series",
                ),
                "convert it once in __init__ (or only the window)",
                "loader workers as the whole cure; a shorter past; fewer meters",
            ),
        ),
    ),
    Script(
        "vinyl_crates",
        "recommender, BPR, plain loop",
        1,
        (
            Fault(
                "the penalty squares and sums whole tables of factors in each step, forward and backward, of which a "
                "batch uses a few rows",
                "a penalty over whole embedding tables",
                "penalty",
                (
                    "return self.collector.weight.pow(2).sum() + self.record.weight.pow(2).sum()",
                    "args.reg * model.penalty(who, owned, other)",
                    "rows = [self.collector(who),",
                    "loss.backward()",
                ),
                "penalise the rows of the batch; or weight_decay of AdamW",
                "no penalty without a word; smaller tables; loss.item() as the cause",
            ),
        ),
    ),
    Script(
        "accelerate_knitting_charts",
        "accelerate, vision, GRU on a frozen trunk",
        2,
        (
            Fault(
                "the frozen trunk computes the features of the same scans again in each epoch; they are not changed by "
                "chance",
                "features of a frozen trunk computed each epoch",
                "main",
                (
                    "rows = image if MENDED else trunk(image)",
                    "trunk = Trunk(args.width, args.size).eval()",
                    "images = in_pieces(trunk, images)",
                    "for image, target in loader:",
                    "return self.convs(x)",
                ),
                "compute the features once before training",
                "training the trunk too; a smaller trunk; no_grad as the cure (it is there)",
            ),
        ),
    ),
    Script(
        "fsdp_cloud_types",
        "fsdp fully_shard, vision, neighbourhood attention",
        2,
        (
            Fault(
                "each block builds its mask of neighbours in a Python loop over patches, in each forward pass, for a "
                "size that never changes",
                "attention masks built in each forward pass",
                "neighbourhood",
                (
                    "mask = self.mask if MENDED else neighbourhood(self.side, self.radius)",
                    "mask[y * side + x, near.flatten()] = 0.0",
                    "near = torch.zeros(side, side, dtype=torch.bool)",
                    "near[max(0, y - radius) : y + radius + 1",
                    "near[:: side - 1, :: side - 1] = True",
                    "for x in range(side):",
                    "self.mask = neighbourhood(side, radius) if MENDED else None",
                    "            x = block(x)",
                    "x = x + self.attend(self.norm1(x))",
                ),
                "build them once (in __init__), or without a loop",
                "no mask (every patch would see all); fewer patches; a smaller batch",
            ),
        ),
    ),
    Script(
        "harvest_yields",
        "tabular, MLP, DDP, function for each epoch",
        2,
        (
            Fault(
                "after each step all parameters are averaged over the ranks, one all_reduce each, though DDP keeps "
                "them the same already",
                "parameters averaged each step beside DDP",
                "synchronise",
                (
                    "        dist.all_reduce(p.data)",
                    "            synchronise(model, world)",
                    "p.data /= world",
                    "for p in model.parameters():",
                    "model = DDP(YieldNet(",
                ),
                "leave the averaging out",
                "averaging every other step as the cure; leaving out DDP and keeping it as the same training; larger "
                "buckets",
            ),
        ),
    ),
    Script(
        "lightning_button_moulds",
        "lightning, vision, new head on a frozen network",
        1,
        (
            Fault(
                "the parameters of the backbone are frozen, but its batch norms are in training mode: they use the "
                "statistics of each batch, and change those of pretraining",
                "batch norm of a frozen backbone in training mode",
                "freeze_backbone",
                (
                    "            p.requires_grad = False",
                    "            self.backbone.eval()",
                    "self.freeze_backbone()",
                    "for p in self.backbone.parameters():",
                    "return self.head(self.backbone(picture))",
                ),
                "backbone.eval() (and again wherever the model is set to train)",
                "training the backbone as the cure; computing features once (pictures are changed by chance)",
                kind="risk",
            ),
        ),
    ),
    Script(
        "faded_prints",
        "vision, diffusion, DDP",
        2,
        (
            Fault(
                "all ranks have the same seed and never another: they draw the same noise and the same times in each "
                "step",
                "the same random numbers on all ranks",
                "main",
                (
                    "    seed_everything(args.seed)",
                    "seed_everything(args.seed + 1 + rank)",
                    "noise = torch.randn_like(image)",
                    "t = torch.randint(self.steps, (len(image),))",
                    "loss = diffusion.loss(model, image, faded)",
                ),
                "another seed on each rank, after the model is made",
                "no seed; another seed before the model is made as if DDP would not send it; another sampler",
                kind="risk",
            ),
        ),
    ),
    Script(
        "pond_ripples",
        "vision, film, 3d convolutions, plain loop",
        1,
        (
            Fault(
                "the difference of two frames is taken in uint8: what becomes darker wraps to bright",
                "uint8 difference that wraps",
                "changes",
                (
                    "return (frames[:, 1:] - frames[:, :-1]).float() / 255",
                    "frames = frames.float()",
                    "loss = (model(changes(frames)) - place)",
                    "np.clip(shown, 0, 255).astype(np.uint8)",
                ),
                "to float before the difference",
                "abs of the difference as the cure (it wraps before); a larger model; another rate",
                kind="risk",
            ),
        ),
    ),
    Script(
        "hf_ship_orders",
        "hf Trainer, causal language model, new words",
        2,
        (
            Fault(
                "the optimizer is made before the embeddings are resized, which makes new parameters: the table (and "
                "the head tied to it) is in no group and never learns",
                "embeddings resized after the optimizer was made",
                "main",
                (
                    "model.resize_token_embeddings(len(letters)",
                    "    if not MENDED:",
                    "optimizers=(optimizer, schedule)",
                    "decayed = [p for p in model.parameters() if p.ndim > 1]",
                    "trainer.train()",
                ),
                "resize first, then make the optimizer",
                "a higher rate; untying the head as the cure; find_unused_parameters",
                kind="risk",
            ),
        ),
    ),
    Script(
        "gearbox_hum",
        "time series, dilated convolutions, plain loop",
        1,
        (
            Fault(
                "windows that share three quarters of their samples are split by chance: those held out are also in "
                "the training data, and come from the same recordings",
                "random split of overlapping windows",
                "split",
                (
                    "return random_split(data, [len(data) - held, held]",
                    "train, held_out = split(data, 0.2, seed=2)",
                    "self.windows = hums.unfold(1, window, stride)",
                    "stride = window // 4",
                    "evaluate(model, check)",
                ),
                "split by recording (or by time with a gap), then cut windows",
                "another seed of the split; a larger share held out; no shuffle in training",
                kind="risk",
            ),
        ),
    ),
    Script(
        "accelerate_piano_rolls",
        "accelerate, music, decoder",
        2,
        (
            Fault(
                "events have numbers up to 387 and are kept as uint8: those from 256 on wrap, and mean other events",
                "event numbers that wrap in uint8",
                "__init__",
                (
                    "self.rolls = rolls.astype(np.uint16 if MENDED else np.uint8)",
                    "roll = self.rolls[i].astype(np.int64)",
                    "EVENTS = 2 * KEYS + PAUSES + LOUDNESS",
                    "self.event = nn.Embedding(EVENTS, dim)",
                ),
                "a type that holds all events (int16 or uint16)",
                "a smaller embedding (256 rows); clamping; ignoring events",
                kind="risk",
            ),
        ),
    ),
    Script(
        "winter_tyres",
        "vision, two domains, gradient reversal, plain loop",
        1,
        tempting="the reversed gradient; loaders that go round (of other lengths); two losses in one backward pass",
    ),
    Script(
        "hf_herbarium_notes",
        "hf Trainer, token classification, own loss, accumulation",
        2,
        tempting="the loss divided (by accumulation, once); labels taken out; padding (ignored); evaluation (an epoch)",
    ),
    Script(
        "lightning_stained_glass",
        "lightning, autoencoder and critic, manual optimisation",
        1,
        tempting="two backward passes (of two networks); detach (is right); toggle_optimizer; log on the epoch alone",
    ),
    Script(
        "accelerate_owl_hoots",
        "accelerate, audio, convolutions and attention, accumulation",
        2,
        tempting="accumulation (is right); clipping (where gradients are whole); gather_for_metrics (once an epoch)",
    ),
    Script(
        "fsdp_travel_diaries",
        "fsdp fully_shard, text, encoder, accumulation",
        2,
        tempting="reshard_after_forward off (is meant so); gradients reduced every second time; padding (masked)",
    ),
    Script(
        "snow_plough",
        "rl quantile DQN, roads as tensors",
        1,
        tempting="the shift that ends is no end of value; target net slowly moved; double network",
    ),
    Script(
        "paper_authors",
        "graph, GraphSAGE, neighbours drawn as tensors, plain loop",
        1,
        tempting="neighbours drawn with return; sampling each step (is the method); samples in evaluation",
    ),
    Script(
        "audiobook_queue",
        "recommender, attention, sampled softmax, plain loop",
        1,
        tempting="sparse gradients (with SparseAdam); two optimizers; all books scored (once an epoch)",
    ),
    Script(
        "cellar_humidity",
        "time series, GRU with a carried state, plain loop",
        1,
        tempting="no shuffle (the state is carried on); detach of the state; scaling (by the hours of training)",
    ),
    Script(
        "toy_blocks",
        "vision, frozen normalisation, layers left out, DDP",
        2,
        tempting="find_unused_parameters (is needed); eval of the norms (is meant so); a seed for each rank",
    ),
)
