"""The twelfth draw of scripts, by someone who had seen neither rules nor results. Sealed as a whole.

Faults were listed from what goes wrong in practice (forums, issue trackers, guides, code review); the weight is how
many of some 460 such reports one would expect to be about it (111 entries). What the tenth and the eleventh draw drew
is left out or stands in another form. Drawn with `random.Random("dptune twelfth draw")` and its `choices`, in the order
of the lists below: 11 that cost time, then 5 that put the result at risk; what is drawn a third time is drawn anew. In
this order (the number is the script's place below):

  time   upsampling before the costly convolutions (1), logits of all positions though one is used (2), rows of a frame
         looked up for each sample (3), picture processed at full size in float64 at each access (4), dense gradients
         and Adam over a large table (5), sharded parameters gathered again in the backward pass and for each
         micro-batch (6), loader made anew each few steps (7), text cleaned and split by regular expressions at each
         access (8), many values logged with sync_dist each step (9), filters, window or basis made by loops in each
         forward (10), profiler left on (11)
  risk   ranks with different weights (12), KL divergence with wrong arguments (13), pooled mean over padding (14), log
         probabilities not recomputed or kept with gradient in PPO (15), loss of mean over ranks with unequal counts
         (16)

Then six healthy ones. Sizes are drawn by the seed between values at which a fault of time costs 12 to 60 % of the
processor time of a step.

  weights of time
  7 picture processed at full size in float64 at each access
  6 text cleaned and split by regular expressions at each access; 6 rows of a frame looked up for each sample
  6 held-out batches scored every few steps; 6 F1, AUC or confusion by numpy over all classes each step
  6 every text padded to max_length; 6 compressed archive or pickle opened for each sample
  5 collate from Python lists of numbers; 5 average of weights through state_dict in Python
  5 norm of each parameter and gradient logged with item each step; 5 activations checkpointed without need
  5 find_unused_parameters left on; 5 recurrent cell driven by a Python loop over time
  5 loop over heads, channels or experts; 5 loss in a loop over the samples of a batch
  5 one-hot product instead of a look-up; 5 logits of all positions though one is used
  5 softmax over the whole vocabulary where masked places are few; 5 second forward pass for the accuracy
  5 real, fake or two views through the network one after the other and again
  4 upsampling before the costly convolutions; 4 gradient penalty in each step
  4 generator's graph kept in the discriminator's step; 4 target or teacher network with gradient
  4 decoding of samples without a cache of keys; 4 replay memory kept as Python tuples
  4 advantages or returns by Python loops over tensors; 4 priorities drawn over all of a large memory
  4 neighbours of fixed points searched again in each layer; 4 message passing in dense matrices
  4 eigenvectors of a graph computed at each access; 4 filters, window or basis made by loops in each forward
  4 double precision from numpy kept in the model; 4 best weights copied each time the training loss falls
  4 gc.collect each step; 4 anomaly detection left on; 4 profiler left on; 4 objects gathered over ranks each step
  4 communication hook in Python that compresses on a fast link; 4 full tensors of sharded parameters taken each step
  4 full state dict gathered every few steps
  4 sharded parameters gathered again in the backward pass and for each micro-batch
  4 gradients clipped parameter by parameter; 4 dense gradients and Adam over a large table
  4 smoothed labels as dense vectors over the vocabulary; 4 pairs or triplets mined in Python
  4 overlap of boxes in Python; 4 features of rolling windows by pandas at each access
  4 JSON or CSV parsed for each sample; 4 loader made anew each few steps
  4 second derivatives by a loop over outputs; 4 schedule of noise computed from the start in each step
  4 per-sample augmentation by small operators; 4 several stochastic passes for an uncertainty that is not used
  4 hidden states or attentions asked for and stacked; 4 many values logged with sync_dist each step
  4 large unneeded heads or auxiliary outputs computed in training; 4 negative items scored one by one
  4 log or history rewritten whole each step; 3 quadratic attention over a long sequence with a local need
  3 repeated sort of all scores for a top few; 3 whole data shuffled by copy each epoch or few steps
  3 hashing of categories in Python each access; 3 weight norm or spectral norm with many iterations
  3 dynamic programming of an alignment in Python; 3 matrix inverse where a solve or a diagonal would do
  3 LBFGS or line search with many closures; 3 optimizer steps over frozen parameters
  3 parameters checked for equality over ranks each step; 3 resampling of audio each access
  3 clone or detach copies of the batch at each layer
  weights of risk
  6 sampler's epoch never set; 5 softmax before cross entropy or sigmoid twice
  5 gradients not cleared or cleared between backward and step
  5 accumulated gradients not divided or last ones dropped
  4 dropout or batch norm in training mode during evaluation; 4 evaluation mode kept after validation
  4 dropout by F.dropout without training; 4 best weights kept by reference
  4 loss of mean over ranks with unequal counts; 4 prediction and target broadcast in the loss
  4 data sorted by class and not shuffled; 4 reshape instead of transpose; 4 mask with the meaning reversed
  4 KL divergence with wrong arguments; 4 pooled mean over padding; 4 gradient cut by detach, item or numpy
  4 optimizer or schedule not restored; 4 forward past the DDP wrapper; 4 end of an episode ignored in targets
  4 clipping after the step or before backward or while scaled; 4 ranks with different weights
  4 augmentation on held-out data or of input without its target; 4 observations or batches stored by reference
  4 unequal steps on ranks; 4 causal mask missing
  4 learning rate zero or constant: schedule never or too often stepped
  4 class weights or pos_weight in the wrong order; 4 target network never updated or shared
  4 target encoding or features from the future; 4 pretrained weights not loaded (strict=False)
  4 tied or new parameters absent from the optimizer; 4 log probabilities not recomputed or kept with gradient in PPO
  3 latent variance as standard deviation, or its loss averaged away; 3 generator trained with the wrong label
  3 teacher in training mode; 3 padding index learned and attended
  3 weight decay on all, or lr so large that it is overwritten by a default
  3 scaler fitted on test data or another one used; 3 rank-local early stop or best checkpoint
  3 numpy random state same in each worker
"""

from __future__ import annotations

from catalogue import Fault, Script

TWELFTH = (
    Script(
        "salt_marshes",
        "vision, segmentation with a pyramid, DDP, function for each epoch",
        2,
        (
            Fault(
                "the features of two coarse levels are enlarged to full size first, then a 1x1 convolution makes six "
                "channels of them: both are linear and commute, so the large tensors are not needed",
                "features enlarged before the 1x1 convolution",
                "forward",
                (
                    "coarse = self.name_quarter(self.enlarge(quarter, size)) + self.name_eighth(",
                    "return F.interpolate(x, size=size, mode=",
                    "return self.name_full(full) + coarse",
                    "loss = F.cross_entropy(model(photo), plant)",
                ),
                "convolve (1x1) at the coarse size, then enlarge the six channels: the same output",
                "smaller pictures; nearest instead of bilinear without a word; fewer levels",
            ),
        ),
    ),
    Script(
        "toy_library",
        "recommender, self-attention over a history, plain loop",
        1,
        (
            Fault(
                "scores of all toys are computed at each of 24 positions, though loss and evaluation use the last one",
                "scores at all positions though the last is used",
                "forward",
                (
                    "return h @ self.toy.weight.T + self.bias",
                    "h = self.norm(self.blocks(self.toy(history) + self.place))",
                    "loss = F.cross_entropy(scores[:, -1], toy)",
                    "scores = model(history)",
                ),
                "take the last position before the product with the table",
                "sampled softmax as the cure without a word; fewer toys; a shorter history; training on all positions "
                "as if it were the same",
            ),
        ),
    ),
    Script(
        "lightning_dairy_herds",
        "lightning, tabular time series, GRU",
        1,
        (
            Fault(
                "each sample looks up its cow and days in a DataFrame by label, twice",
                "rows of a DataFrame looked up for each sample",
                "__getitem__",
                (
                    "history = self.table.loc[cow].loc[day - self.past : day]",
                    "values = torch.from_numpy(history[MEASURES].to_numpy(copy=True))",
                    "cow, day = self.places[i]",
                    "trainer.fit(model, DataLoader(train",
                ),
                "turn the table into an array once (by cow and day) and slice it",
                "loader workers as the whole cure; a smaller table; a larger batch",
            ),
        ),
    ),
    Script(
        "accelerate_seed_packets",
        "accelerate, vision, residual network",
        2,
        (
            Fault(
                "the whole photograph is scaled, raised to a power and normalised in float64 at each access, and then "
                "a crop of 64 pixels is cut from it",
                "the whole photograph prepared in float64 before a small crop",
                "__getitem__",
                (
                    "photo = self.prepare(self.photos[i])[y :",
                    "photo = np.clip(photo, 0, 1) ** (1 / 1.1)",
                    "photo = photo / 255.0",
                    "return (photo - MEAN) / STD",
                    "for photo, kind in loader:",
                ),
                "crop first, then prepare (and in float32)",
                "loader workers as the whole cure; no gamma; smaller crops",
            ),
        ),
    ),
    Script(
        "vinyl_shelves",
        "recommender, two towers, plain loop",
        1,
        (
            Fault(
                "tables of 100,000 rows and more have dense gradients: they are filled with zeros, and Adam goes over "
                "each row in each step, though a batch has 512 of each",
                "dense gradients and Adam over large tables",
                "__init__",
                (
                    "self.collector = nn.Embedding(collectors, dim, sparse=MENDED)",
                    "self.record = nn.Embedding(records, dim, sparse=MENDED)",
                    "return [torch.optim.Adam(tables, lr=lr, fused=True)",
                    "            loss.backward()",
                ),
                "sparse=True with SparseAdam for the tables (or Adagrad or SGD; rows that are not seen stay)",
                "smaller tables; sparse=True with Adam (raises); loss.item() as the cause",
            ),
        ),
    ),
    Script(
        "fsdp_harbour_pilots",
        "fsdp fully_shard, language model, accumulation",
        2,
        (
            Fault(
                "parameters are freed after each forward and each backward pass, also between the micro-batches of a "
                "step, in which they do not change: they are gathered again twice for each micro-batch, of a model of "
                "a few megabytes",
                "parameters gathered twice for each micro-batch",
                "shard",
                (
                    "fully_shard(layer, reshard_after_forward=not MENDED)",
                    "model.set_reshard_after_backward(last)",
                    "return fully_shard(model)",
                    "model.set_requires_gradient_sync(last)",
                    "loss = F.cross_entropy(model(ids).flatten(0, 1), target.flatten()) / accumulate",
                    "loss.backward()",
                ),
                "reshard_after_forward=False, and set_reshard_after_backward(False) but in the last micro-batch; or "
                "no sharding",
                "no accumulation without a word; gradients reduced in each micro-batch as the cause; no_sync()",
            ),
        ),
    ),
    Script(
        "lace_gan",
        "gan, hinge loss, spectral norm, class with two steps",
        1,
        (
            Fault(
                "each step makes a new iterator of the loader for one batch: the sampler draws an order of all "
                "swatches and turns it into a list each time",
                "a new iterator over the loader for each batch",
                "real",
                (
                    "batch = next(iter(self.loader))",
                    "self.loader = DataLoader(data, batch, shuffle=True, drop_last=True)",
                    "self.critic(self.real())",
                    "critic = shop.critic_step()",
                ),
                "keep the iterator and make a new one when it ends (or draw indices with randint)",
                "loader workers (they would be started each time); no shuffle; fewer swatches",
            ),
        ),
    ),
    Script(
        "hf_parish_letters",
        "hf Trainer, sequence classification",
        2,
        (
            Fault(
                "each access cleans a letter by regular expressions and splits it, though the letters never change",
                "text cleaned and split in __getitem__",
                "encode",
                (
                    "ids = self.ready[i] if self.ready else self.encode(self.text[i])",
                    "parts = PARTS.findall(clean(text))",
                    'text = re.sub(r"<p\\. \\d+>", " ", text)',
                    'text = re.sub(r"\\[[^\\]]*\\]|',
                    'return re.sub(r"\\s+", " ", text).strip().lower()',
                    'text = unicodedata.normalize("NFKC", text)',
                    "return torch.tensor([self.known.get(part, 1)",
                    "trainer.train()",
                ),
                "encode all letters once (in __init__ or to a file)",
                "loader workers as the whole cure; shorter letters without a word; the model as the cause",
            ),
        ),
    ),
    Script(
        "lightning_ice_cores",
        "lightning, DDP, convolutions over a signal, many outputs",
        2,
        (
            Fault(
                "28 values are logged with sync_dist in each step, each reduced over the ranks on its own, again at "
                "the end of the epoch",
                "28 values logged with sync_dist each step",
                "training_step",
                (
                    'self.log(f"train/{name}", error, on_step=True, on_epoch=True, sync_dist=True)',
                    'self.log("loss", loss, sync_dist=True)',
                    "for name, error in zip(SUBSTANCES, errors, strict=True):",
                    "trainer.fit(model, DataLoader(train",
                ),
                "no sync_dist on the step (or on_epoch alone); or one tensor reduced for all",
                "larger buckets; a larger batch; fewer outputs",
            ),
        ),
    ),
    Script(
        "quarry_blasts",
        "scientific, seismograms, wavelets then convolutions, plain loop",
        1,
        (
            Fault(
                "the wavelets are computed again in each forward pass, in a loop over scales, though nothing of them "
                "is learned",
                "wavelets computed in each forward pass",
                "wavelets",
                (
                    "bank = self.bank if MENDED else self.wavelets()",
                    "real, imag = morlet(scale, self.length, 5.0 * shift)",
                    "for scale in self.scales:",
                    "for shift in (0.8, 1.0, 1.25):",
                    "norm = torch.sqrt((real**2 + imag**2).sum())",
                    "rows += [real / norm, imag / norm]",
                    "return torch.stack(rows).unsqueeze(1)",
                    "bell = torch.exp(-0.5 * t**2) / math.sqrt(scale)",
                    "bell = bell - bell.mean()",
                    "t = (torch.arange(length) - length // 2) / scale",
                    "return bell * torch.cos(omega * t), bell * torch.sin(omega * t)",
                    "loss = F.cross_entropy(model(wave), label)",
                ),
                "compute them once and keep them as a buffer",
                "fewer scales without a word; shorter wavelets; the convolution as the cause",
            ),
        ),
    ),
    Script(
        "beehive_visits",
        "graph, message passing with edge features, accumulation, plain loop",
        1,
        (
            Fault(
                "torch.profiler runs through all of training: each twelfth step is recorded with shapes, and a table "
                "of its operators is made and written",
                "torch.profiler left on",
                "watched",
                (
                    "return profile(activities=[ProfilerActivity.CPU], schedule=plan",
                    "with watched() as prof:",
                    "            prof.step()",
                    "plan = schedule(wait=10, warmup=1, active=1)",
                    "rows = sorted(prof.key_averages()",
                ),
                "leave the profiler out of training (or one cycle: repeat=1)",
                "fewer layers; batching the graphs as the first thing",
            ),
        ),
        figure="mean",
    ),
    Script(
        "mill_streams",
        "time series, temporal convolutions, Trainer class, gradients averaged by hand",
        2,
        (
            Fault(
                "each rank has a seed of its own when the model is made, and nothing sends the weights of one to the "
                "others: averaged gradients are applied to different weights",
                "ranks start from different weights",
                "main",
                (
                    "torch.manual_seed(args.seed + dist.get_rank())",
                    "dist.broadcast(weight.data, 0)",
                    "model = MillNet(2 * args.gauges",
                    "average_gradients(self.model, self.world)",
                    "dist.all_reduce(flat)",
                ),
                "broadcast the weights from rank 0 before training; the same seed when the model is made; or DDP",
                "averaging the parameters each step as the cure; another sampler",
                kind="risk",
            ),
        ),
    ),
    Script(
        "fern_sprigs",
        "vision, distillation, Trainer class",
        1,
        (
            Fault(
                "kl_div is given probabilities of the student where it wants their logarithms: the loss is no "
                "divergence, and grows as the student comes near the teacher",
                "kl_div of probabilities instead of log probabilities",
                "soft_loss",
                (
                    "return F.kl_div(F.softmax(student / t, 1)",
                    "loss = self.s.weight * self.soft_loss(scores, known)",
                    "scores = self.student(photo)",
                ),
                "log_softmax for the student",
                "another weight or temperature; log_target=True as the cure alone; exchanging the arguments",
                kind="risk",
            ),
        ),
    ),
    Script(
        "accelerate_street_cries",
        "accelerate, audio, convolution and GRU",
        2,
        (
            Fault(
                "outputs are averaged over all frames of the batch, also those after the end of a cry: the score of a "
                "cry depends on the longest one beside it",
                "mean over padded frames",
                "forward",
                (
                    "pooled = x.mean(1)",
                    "return self.out(self.norm(pooled))",
                    "return pad_sequence(frames, batch_first=True), length,",
                    "loss = F.cross_entropy(model(frames, length), good)",
                ),
                "sum over frames inside the length, divided by it",
                "cutting all to the shortest; a larger batch; max instead of mean as a sure cure",
                kind="risk",
            ),
        ),
    ),
    Script(
        "sheep_dog",
        "rl PPO, fields as tensors",
        1,
        (
            Fault(
                "the old log probability is computed by the policy that is being trained, in each minibatch: the ratio "
                "is 1 always, and nothing is ever clipped",
                "old log probabilities from the current policy",
                "update",
                (
                    'old = batch["logp"][part] if MENDED else dog(obs)[0].log_prob(action)',
                    "ratio = (logp - old).exp()",
                    "policy_loss = -torch.min(ratio * gain, ratio.clamp(",
                    "policy, value = update(dog, optimizer, batch, s)",
                ),
                "use the log probability kept when the action was drawn",
                "another clip; leaving out the second forward pass with logp.detach() (the ratio stays 1)",
                kind="risk",
            ),
        ),
    ),
    Script(
        "fsdp_riddle_books",
        "fsdp fully_shard, text, masked words",
        2,
        (
            Fault(
                "each rank divides by its number of hidden words, and the gradients are averaged over ranks: riddles "
                "are of very different lengths, so a word weighs more on the rank that has few",
                "mean over a rank's count of words, averaged over ranks",
                "hidden_word_loss",
                (
                    "    return loss / count",
                    "count = (target != -100).sum().float()",
                    "dist.all_reduce(count)",
                    "loss = hidden_word_loss(model(ids), target, world)",
                    "loss.backward()",
                ),
                "divide by the words of all ranks (all_reduce of the count), times the number of ranks",
                "reduction='mean' as the cure; riddles of one length without a word; dropping the longest",
                kind="risk",
            ),
        ),
    ),
    Script(
        "lightning_moth_wings",
        "lightning, vision, averaged weights",
        1,
        tempting="the average (by foreach, each step); the copy without gradient (is meant so); flips on the batch",
    ),
    Script(
        "accelerate_menu_prices",
        "accelerate, tabular and text, a branch left out by chance",
        2,
        tempting="find_unused_parameters (is needed); a coin for each rank (is meant so); padding (masked); gather "
        "(in evaluation)",
    ),
    Script(
        "drum_skins",
        "scientific, Fourier neural operator, gradients averaged by hand",
        2,
        tempting="a seed for each rank (weights are broadcast after); gradients averaged flat without DDP; positions "
        "(a buffer)",
    ),
    Script(
        "fsdp_knot_manuals",
        "fsdp fully_shard, text, encoder and decoder",
        2,
        tempting="the count reduced each step (is needed); reshard_after_forward off (is meant so); padding (masked)",
    ),
    Script(
        "kite_pilot",
        "rl SAC, winds as tensors",
        1,
        tempting="an evening's end is no end of value; two critics; three optimizers; backward passes of two networks",
    ),
    Script(
        "hf_garden_diaries",
        "hf Trainer, sequence classification, lengths grouped",
        1,
        tempting="padding (to the longest of a batch of like lengths); evaluation (each epoch); words encoded once",
    ),
)
