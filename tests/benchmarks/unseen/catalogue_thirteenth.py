"""The thirteenth draw of scripts, by someone who had seen neither rules nor results. Sealed as a whole.

Faults were counted, not listed from memory: 63 searches for symptoms in stored threads of issue trackers and in public
pages (slow training, low use of the device, several ranks slower or worse than a single process, growing memory, a
loss that does not fall, worse results with more ranks, wrong metrics, for vision, text, audio, graphs, reinforcement
learning, recommenders, GANs, DDP, FSDP2, Hugging Face Trainer, Lightning, Accelerate). The weight of a fault is the
number of threads found about it in a training script; faults of libraries, installation and hardware, and what shows on
a GPU alone or in waiting alone (loader workers, pinned memory, mixed precision), are left out, as is retain_graph=True
(5 threads; memory alone). Nothing is left out because an earlier draw has it. Behind each fault: a thread about it.
Drawn with `random.Random("dptune thirteenth draw")` and its `choices`, in the order of the lists below: 14 that cost
time, then 6 that put the result at risk; what is drawn a third time is drawn anew. In this order (the number is the
script's place below):

  time   anomaly detection left on (1), metrics by numpy in each step (2), average of weights by a Python loop or by
         state_dict (3), generator's graph kept in the discriminator's step (4), anomaly detection left on again (5),
         recurrent decoder called word by word (6), tensors in memory fetched sample by sample (7), average of weights
         again (8), whole picture augmented at each access (9), generator's graph again (10), loss in a Python loop
         (11), loss in a Python loop again (12), batch put together in Python loops (13), validation without no_grad
         (14)
  risk   causal mask missing (15), view instead of transpose (16), prediction and target broadcast in the loss (17),
         negatives gathered without gradient (18), losses kept with their graphs (19), padding counted in the loss (20)

Then eight healthy ones, most of them look-alikes of common faults. Sizes are drawn by the seed between values at which
a fault of time costs 12 to 60 % of the processor time of a step.

  weights of time (38 faults, 142 threads)
  10 find_unused_parameters on though all parameters are used (facebookresearch/swav#63)
  9 validation without no_grad (chrischoy/FCGF#15)
  8 gradients reduced in each micro-batch: no_sync missing, or around the backward pass alone (karpathy/nanochat#33)
  8 anomaly detection left on (yenchenlin/nerf-pytorch#42)
  8 pictures decoded and resized again at each access (nerfstudio-project/gsplat#1062)
  8 loss in a Python loop over samples, classes or pairs (HarryVolek/PyTorch_Speaker_Verification#33)
  6 scores of the whole evaluation kept and joined by the Hugging Face Trainer (huggingface/transformers#15466)
  6 generator's graph kept in the discriminator's step (yunjey/pytorch-tutorial#56)
  5 metrics by numpy or scikit-learn in each training step (Lightning-AI/pytorch-lightning#3050)
  5 average of weights by a Python loop or through state_dict (ultralytics/ultralytics#25315)
  5 texts padded to max_length (deepspeedai/DeepSpeedExamples#849)
  5 tensors made of Python lists at each access (huggingface/datasets#5841)
  4 spectrogram of the same clip computed at each access (Rudrabha/Wav2Lip#447)
  4 histograms of weights and gradients every few steps (wandb/wandb#2268)
  4 negative items drawn in Python loops (RUCAIBox/RecBole#103)
  4 replay memory of Python tuples in a deque (hill-a/stable-baselines#604)
  3 whole picture or volume augmented at each access (Lightning-AI/pytorch-lightning#1216)
  3 a file opened and unpacked for each sample (ZikangZhou/HiVT#33)
  3 text tokenised again in each epoch (deeppavlov/DeepPavlov#600)
  3 graph or neighbours of fixed points built again at each access (chendaichao/GCN-pointcloud-classification#2)
  3 weight gradients of the discriminator in the generator's step (eriklindernoren/PyTorch-GAN#179)
  3 frozen part still has gradients (BINE022/EEGPT#18)
  3 the same forward pass computed twice (feidfoe/learning-not-to-learn#5)
  3 batch put together (or taken apart) in Python loops (NovaSky-AI/SkyRL#1808)
  2 rows of a DataFrame looked up for each sample (braindecode/braindecode#89)
  2 dense gradients and Adam over a large table (RUCAIBox/RecBole#558)
  2 values logged with sync_dist in each step (sb-ai-lab/RePlay#100)
  2 sharded parameters of a small model gathered again (meta-pytorch/torchtune#2402)
  2 activations checkpointed without need (ecmwf/WeatherGenerator#1141)
  1 recurrent decoder called word by word though targets are known (ywk991112/pytorch-chatbot#6)
  1 heat maps of targets built in Python loops at each access (microsoft/human-pose-estimation.pytorch#31)
  1 checkpoint every few steps (instructlab/training#18)
  1 loader made again each few steps or epoch (ultralytics/yolov3#688)
  1 tensors in memory fetched sample by sample (shenweichen/DeepCTR-Torch#70)
  1 whole recordings loaded for a short cut (sigsep/open-unmix-pytorch#3)
  1 network called for each agent or node in a loop (proroklab/gnn_pathplanning#2)
  1 target network with gradient (philtabor/Deep-Q-Learning-Paper-To-Code#16)
  1 a backward pass for each term (rentruewang/brief#1)
  weights of risk (37 faults, 188 threads)
  10 epoch of the sampler never set (kan-bayashi/ParallelWaveGAN#177)
  10 softmax before cross entropy (bowang-lab/Transformer-GCN-QA#32)
  9 softmax over the wrong dimension (Lackel/DPN#1)
  9 losses kept with their graphs (ray-project/ray#40940)
  8 validation in training mode (udacity/deep-learning-v2-pytorch#3)
  8 schedule stepped in the wrong unit, or never (Lornatang/SRGAN-PyTorch#1)
  8 best weights kept by reference (WenjieDu/PyPOTS#667)
  8 training data not shuffled (choderalab/modelforge#129)
  8 ranks see the same data, or shares that overlap (openspeech-team/openspeech#149)
  7 gradients never cleared, or once an epoch (meta-pytorch/torchforge#71)
  7 functional dropout in evaluation (rixwew/pytorch-fm#21)
  7 random state of numpy the same in each worker (xingyizhou/CenterNet#233)
  6 modules in a plain list (pytorch/pytorch#59925)
  6 resumed without optimizer or schedule (PolymathicAI/the_well#77)
  6 metric over ranks wrong: shares, means of means, repeated samples (roboflow/rf-detr#1507)
  5 prediction and target broadcast in the loss (yuji-roh/fairbatch#2)
  5 padding counted in the loss (open-jarvis/OpenJarvis#521)
  5 data scaled with the statistics of all, also held-out, data (teddykoker/blog#3)
  4 padding attended to (jingyaogong/minimind-v#76)
  4 evaluation mode kept after validation (wkentaro/pytorch-fcn#57)
  4 gradients cleared in each micro-batch, or last group dropped (bytetriper/RAE#67)
  4 gradients clipped after the step or in each micro-batch (VGraphRNN/VGRNN#4)
  4 view or reshape instead of transpose (zhouhaoyi/Informer2020#59)
  4 KL term averaged away or wrong (podgorskiy/VAE#1)
  4 frozen normalisation still learns its statistics (kdexd/virtex#16)
  3 no_sync over the last micro-batch (modelscope/FunASR#3472)
  3 forward past the DDP wrapper (bytetriper/RAE#40)
  3 end of an episode ignored in targets (navneet-nmk/pytorch-rl#2)
  3 overlapping windows on both sides of the split (HelenGuohx/logbert#57)
  3 causal mask missing (pytorch/tutorials#2478)
  3 negatives of the rank alone, or gathered without gradient (Lightning-Universe/lightning-bolts#179)
  2 accumulated gradients not divided (NVlabs/wetectron#70)
  2 ranks start from different weights (Helsinki-NLP/FoTraNMT#45)
  2 generator's loss detached from the generator (nikhilsinghmus/image2reverb#37)
  2 target network is the network itself, or copied each step (higgsfield/RL-Adventure#32)
  1 mean over unequal counts of words in accumulation (huggingface/blog#2414)
  1 in-batch negatives under accumulation (mdiephuis/SimCLR#13)
"""

from __future__ import annotations

from catalogue import Fault, Script

THIRTEENTH = (
    Script(
        "falcon_dives",
        "rl SAC, flight model as tensors",
        1,
        (
            Fault(
                "anomaly detection is on for all of training: each forward operation records a Python traceback, and "
                "each backward operation is searched for NaN",
                "torch.autograd.set_detect_anomaly left on",
                "set_up",
                (
                    "torch.autograd.set_detect_anomaly(not MENDED)",
                    "set_up(5)",
                    "        critic_loss.backward()",
                    "        policy_loss.backward()",
                    "loss = falcon.update(",
                ),
                "turn anomaly detection off (or on for the steps in which a NaN is looked for)",
                "a smaller network; fewer critics; a check for NaN of each gradient in its place",
            ),
        ),
    ),
    Script(
        "accelerate_frost_alarms",
        "accelerate, tabular, several labels",
        2,
        (
            Fault(
                "area under the curve and the best F1 of 20 stations are computed by numpy in Python loops after each "
                "training step, and only the last of them is printed, once an epoch",
                "AUC and F1 by numpy in each training step",
                "report",
                (
                    "figures = report(logits, frozen)",
                    "for value in np.unique(score):",
                    "rank[same] = rank[same].mean()",
                    "hit = np.logical_and(alarm",
                    "area = np.mean([",
                    "f1 = np.mean([",
                    "if same.sum() > 1:",
                    "same = score == value",
                    "for level in levels:",
                    "alarm = score >= level",
                    "found = max(found",
                ),
                "compute them every some steps, or in the validation",
                "removing the metrics altogether; loader workers; a smaller model; .item() as the cause",
            ),
        ),
    ),
    Script(
        "lichen_walls",
        "vision, residual network, Trainer class",
        1,
        (
            Fault(
                "in each step the whole state is copied, and the average is made anew tensor by tensor: a copy, two "
                "products and a sum, each with new memory, for every weight",
                "average of weights through a copy of the state_dict, in Python",
                "update",
                (
                    "self.kept[name] = self.decay * self.kept[name]",
                    "now = copy.deepcopy(model.state_dict())",
                    "for name in self.kept:",
                    "self.average.update(self.model)",
                ),
                "update in place: torch._foreach_lerp_, or AveragedModel with get_ema_multi_avg_fn; or rarely",
                "no average; a smaller model; another optimizer as the cause",
            ),
        ),
    ),
    Script(
        "wax_gan",
        "gan, logistic loss, spectral normalisation, plain loop",
        1,
        (
            Fault(
                "the seals for the discriminator's step keep the generator's graph, so that its backward pass runs "
                "through the generator too; those gradients are cleared before they are used",
                "generator's graph in the discriminator's step",
                "expert_step",
                (
                    "fake = engraver(z)",
                    "loss = F.softplus(-expert(real)).mean() + F.softplus(expert(fake)).mean()",
                    "expert_loss = expert_step(",
                ),
                "detach what is generated, or generate it under torch.no_grad()",
                "detaching in the generator's step; fewer steps of the discriminator; no spectral normalisation",
            ),
        ),
    ),
    Script(
        "lightning_sewer_pipes",
        "lightning, graph, message passing, DDP",
        2,
        (
            Fault(
                "the Trainer's anomaly detection is on: each forward operation records a traceback, here through many "
                "frames of the framework, and each backward operation is searched for NaN",
                "detect_anomaly=True of the Trainer",
                "trainer",
                (
                    "detect_anomaly=not MENDED",
                    "fit = trainer(epochs=2)",
                    "return F.mse_loss(self(*town), pressure)",
                    "    fit.fit(",
                    "sent = self.message(",
                    "return x + self.change(",
                ),
                "leave detect_anomaly off",
                "fewer rounds of messages; larger buckets; another collate function",
            ),
        ),
    ),
    Script(
        "sailor_phrases",
        "text, sequence to sequence, GRU with attention, plain loop",
        1,
        (
            Fault(
                "in training the decoder is called for each word on its own, with its look-up, attention and output, "
                "though all words of the target are known and nothing is fed back",
                "decoder called word by word though targets are known",
                "forward",
                (
                    "score, state = self.decoder(target[:, t : t + 1]",
                    "for t in range(target.shape[1] - 1):",
                    "scores.append(score)",
                    "hidden, state = self.gru(self.word(word), state)",
                    "score = hidden @ key",
                    "weight = score.masked_fill(",
                    "return self.out(torch.tanh(self.mix(",
                    "loss = model(source, target)",
                ),
                "one call of the decoder with all words of the target: the GRU steps inside, the rest at once",
                "the same for translate(), where each word depends on the last; shorter phrases; an LSTM instead",
            ),
        ),
    ),
    Script(
        "bookshop_visits",
        "recommender, crosses and factorisation machine, DDP",
        2,
        (
            Fault(
                "tensors that lie in memory are taken apart into some 2,000 samples for each batch, and stacked again",
                "TensorDataset fetched sample by sample and collated",
                "loaders",
                (
                    "return sampler, DataLoader(data, batch_size=batch, sampler=sampler",
                    "for fields, numbers, bought in loader:",
                    "train, test = TensorDataset(*visits(",
                    "sampler, loader = loaders(",
                ),
                "take a batch by its indices at once: BatchSampler as sampler with batch_size=None, or slices of a "
                "permutation",
                "loader workers as the whole cure; no shuffle; smaller batches",
            ),
        ),
    ),
    Script(
        "windmill_power",
        "time series, dilated convolutions, DDP, plain loop",
        2,
        (
            Fault(
                "the averaged weights are made anew by name in each step: two products, a sum and a copy of each "
                "parameter, each with new memory",
                "average of weights in a Python loop with copies",
                "update",
                (
                    "mean = (1.0 - self.decay) * p.data",
                    "self.weights[name] = mean.clone()",
                    "            shadow.update()",
                ),
                "update in place (torch._foreach_lerp_, or lerp_ for each), or every some steps",
                "an all_reduce of the averages; no average; larger buckets; a smaller head without a word",
            ),
        ),
    ),
    Script(
        "hf_quilt_photos",
        "hf Trainer, vision transformer",
        1,
        (
            Fault(
                "the whole photograph is turned, tinted three times and blurred at each access, then a detail of 64 "
                "pixels is cut from it",
                "the whole photograph augmented before a small crop",
                "detail",
                (
                    "return self.changed(photo).crop((x - half",
                    "photo = photo.rotate(",
                    "photo = ImageEnhance.Color(photo)",
                    "photo = ImageEnhance.Contrast(photo)",
                    "photo = ImageEnhance.Brightness(photo)",
                    "return photo.filter(",
                    "photo = self.detail(photo)",
                    "trainer.train()",
                ),
                "cut the detail with a margin first, then turn, tint and blur it, and cut the margin off",
                "loader workers as the whole cure; no augmentation; computing the changed photographs once",
            ),
        ),
    ),
    Script(
        "accelerate_map_tints",
        "accelerate, gan, picture to picture, U-Net",
        2,
        (
            Fault(
                "the maps for the critic's step keep the graph of the U-Net: the critic's backward pass runs through "
                "it too, and its gradients are reduced over the ranks and then cleared",
                "generator's graph in the discriminator's step",
                "train_step",
                (
                    "guess = colourist(drawing)",
                    "accelerator.backward(loss_critic)",
                    "loss_critic = critic_loss(",
                    "losses = train_step(",
                ),
                "detach what is painted for the critic, or paint it under torch.no_grad()",
                "detaching in the colourist's step; find_unused_parameters; no_sync in the colourist's step",
            ),
        ),
    ),
    Script(
        "ferryman_calls",
        "audio, speaker vectors, GRU, plain loop",
        1,
        (
            Fault(
                "the loss goes over men, calls and men again in Python: a cosine of two small vectors for each of some "
                "hundred pairs, each an operation of its own in the graph",
                "pairwise loss in Python loops",
                "centre_loss",
                (
                    "near = F.cosine_similarity(voice[m, c], middle, dim=0)",
                    "for other in range(men):",
                    "for c in range(each):",
                    "score.append(",
                    "middle = torch.cat([voice[m, :c]",
                    "loss = loss - F.log_softmax(torch.stack(score), 0)",
                    "loss = model.centre_loss(voice)",
                    "        loss.backward()",
                ),
                "compute all cosines at once: (men, calls, men), with the centre without the call on the diagonal",
                "fewer men or calls without a word; a shorter call; the GRU as the cause",
            ),
        ),
    ),
    Script(
        "fsdp_herb_remedies",
        "fsdp fully_shard, text, several labels",
        2,
        (
            Fault(
                "the loss goes over remedies and their treated ailments in Python, with a selection and a softplus for "
                "each",
                "ranking loss in Python loops over samples and labels",
                "ranking_loss",
                (
                    "of_remedy = of_remedy + F.softplus(",
                    "for positive in row[yes]:",
                    "for row, yes in zip(",
                    "total = total + of_remedy / yes.sum()",
                    "loss = ranking_loss(model(batch), labels)",
                    "            loss.backward()",
                ),
                "all pairs at once: differences (batch, ailments, ailments), masked by treated and not treated",
                "a binary loss instead without a word; reshard_after_forward; a smaller batch",
            ),
        ),
    ),
    Script(
        "hf_psalm_verses",
        "hf Trainer, text, masked words",
        2,
        (
            Fault(
                "the collate function goes over every word of a batch in Python, twice: it writes single elements of "
                "tensors to fill up the verses, then reads and writes them again to hide words",
                "batch filled and masked word by word in the collate function",
                "hide",
                (
                    "if ids[i, j] >= FIRST and random.random()",
                    "for j in range(ids.shape[1]):",
                    "labels[i, j] = ids[i, j]",
                    "ids[i, j] = MASK",
                    "ids[i, j] = word",
                    "seen[i, j] = 1",
                    "for j, word in enumerate(row):",
                    '"attention_mask": seen, "labels": self.hide(ids)',
                    "        ).train()",
                ),
                "pad_sequence, and masks drawn and applied to the whole batch by tensor operations",
                "loader workers as the whole cure; fewer masked words; masks drawn once for all epochs",
            ),
        ),
    ),
    Script(
        "boiler_rooms",
        "time series, recurrent rollouts, plain loop",
        1,
        (
            Fault(
                "the validation rolls out long series with gradients: the graph of every small operation is built and "
                "thrown away, every fourth step",
                "validation without torch.no_grad()",
                "validate",
                (
                    "error = (model.rollout(heat[part], signal[part])",
                    "error = check(model, test_heat",
                    "check = torch.no_grad()(validate) if MENDED else validate",
                    "now, memory = self(now, signal[:, t], memory)",
                    "memory = self.cell(torch.cat([heat, signal], 1), memory)",
                    "return heat + 0.1 * self.out(self.norm(memory))",
                ),
                "validate under torch.no_grad() (or inference_mode); and more rarely",
                "model.eval() as the cure (it is there); no validation; rollouts without feedback",
            ),
        ),
        figure="mean",
    ),
    Script(
        "fsdp_sea_shanties",
        "fsdp fully_shard, language model",
        2,
        (
            Fault(
                "attention has no causal mask, though the target is the next word of the input: each place sees the "
                "word that it is to predict",
                "causal mask missing in a language model",
                "forward",
                (
                    "dropout_p=dropout, is_causal=MENDED)",
                    "x = x + self.attention(self.norm1(x))",
                    "            loss = F.cross_entropy(model(text).flatten(0, 1), after.flatten())",
                    "return self.text[at : at + self.length], self.text[at + 1",
                ),
                "is_causal=True (or a causal mask)",
                "more dropout; a padding mask; shifting the targets once more",
                kind="risk",
            ),
        ),
    ),
    Script(
        "lightning_snowmelt",
        "lightning, time series, attention",
        1,
        (
            Fault(
                "heads are made by view() where days and heads are to be exchanged: a head gets parts of some days, "
                "and the result is put together as if it were by days",
                "view instead of transpose between heads and days",
                "heads_first",
                (
                    "return x.view(b, self.heads, days, dim // self.heads)",
                    "q, k, v = (self.heads_first(layer(x))",
                    "return self.out(y.transpose(1, 2).reshape(b, days, dim))",
                ),
                "view(b, days, heads, -1).transpose(1, 2)",
                "another number of heads; contiguous() as the cure; scaled_dot_product_attention alone",
                kind="risk",
            ),
        ),
    ),
    Script(
        "hop_gardens",
        "tabular, transformer over columns, quantiles, Trainer class",
        1,
        (
            Fault(
                "predictions have shape (batch, 1) and yields (batch): their difference is a square, so that each "
                "prediction is pulled to the quantile of the whole batch",
                "prediction (N, 1) and target (N) broadcast in the loss",
                "quantile_loss",
                (
                    "gap = yields - predicted",
                    "predicted = predicted.squeeze(1)",
                    "return [head(x) for head in self.heads]",
                    "loss = sum(quantile_loss(",
                ),
                "squeeze the prediction (or give the target the same shape)",
                "another learning rate; sum instead of mean; the huge tensor as a matter of time alone",
                kind="risk",
            ),
        ),
    ),
    Script(
        "accelerate_stamp_stories",
        "accelerate, contrastive, pictures and text",
        2,
        (
            Fault(
                "vectors of all ranks are gathered without gradient, also those of the rank: each vector learns as a "
                "query alone, never as the right answer or as a negative",
                "gathered vectors carry no gradient",
                "from_all",
                (
                    "everything = accelerator.gather(vectors)",
                    "stamps, stories = from_all(",
                    "loss = contrastive_loss(",
                    "return 0.5 * (F.cross_entropy(scale * stamp @ stories.T",
                ),
                "put the vectors of the rank back into their place, or gather with gradient (torch.distributed.nn)",
                "detaching the queries too; no gathering without a word; a larger batch as the cure",
                kind="risk",
            ),
        ),
    ),
    Script(
        "lock_keeper",
        "rl A2C with a memory, locks as tensors",
        1,
        (
            Fault(
                "losses and entropies of all updates are kept for the curves with their graphs, each over 28 steps of "
                "a recurrent cell: memory grows with each update",
                "losses kept with their graphs",
                "note",
                (
                    "self.losses.append(torch.stack([loss, value_loss, entropy]))",
                    "diary.note(loss",
                    "loss, value_loss, entropy = loss.detach()",
                    "loss, value_loss, entropy = torch.stack(self.losses[-count:])",
                ),
                "keep loss.detach() (or .item())",
                "gc.collect(); fewer steps for an update; a shorter history as the whole cure",
                kind="risk",
            ),
        ),
    ),
    Script(
        "hf_tavern_songs",
        "hf Trainer, language model, GPT-2",
        2,
        (
            Fault(
                "labels are a copy of the filled-up input: the loss counts the filling of every song, most of its "
                "terms in batches with a long song, and looks low",
                "padding counted in the loss of a language model",
                "__call__",
                (
                    "labels = ids.clone()",
                    "labels[~seen] = -100",
                    "ids = torch.nn.utils.rnn.pad_sequence(songs",
                    "trainer.train()",
                ),
                "set the labels of filled places to -100 (by length: the end of a song is the same number)",
                "setting all labels of that number to -100 (the end is never learned); cutting songs; no mask",
                kind="risk",
            ),
        ),
    ),
    Script(
        "pebble_beaches",
        "vision, depthwise convolutions, DDP, plain loop",
        2,
        tempting="a seed for each rank before the model is made (DDP sends the weights of rank 0); a seed of the "
        "sampler; mixed photographs (are meant so)",
    ),
    Script(
        "almanac_sayings",
        "text, GPT, accumulation, DDP, Trainer class",
        2,
        tempting="no_sync (is right, and the loss is divided); a generator for each rank (is meant so); tied weights; "
        "logits of all places (are all used)",
    ),
    Script(
        "pewter_gan",
        "gan, hinge loss, plain loop",
        1,
        tempting="a penalty with second derivatives (each eighth step); two generator passes (are needed); an average "
        "of weights (by foreach)",
    ),
    Script(
        "fsdp_cobblestones",
        "fsdp fully_shard, vision transformer",
        2,
        tempting="reshard_after_forward off (is meant so); the count reduced in the validation; a schedule in steps",
    ),
    Script(
        "hf_auction_lots",
        "hf Trainer, token classification",
        1,
        tempting="padding (to the longest of a batch, -100 in labels); argmax over all scores (in evaluation); metrics "
        "(each epoch)",
    ),
    Script(
        "glacier_runoff",
        "time series, decoder with feedback, plain loop",
        1,
        tempting="a loop over days with a cell (each guess is the next input); attention for each day (depends on it)",
    ),
    Script(
        "accelerate_tool_rentals",
        "accelerate, recommender, two towers",
        2,
        tempting="a loader that is not prepared (each rank has a share); all tools scored (in validation); a dense "
        "table (is small); forward past the wrapper (in validation)",
    ),
    Script(
        "lightning_swarm_points",
        "lightning, graph, moving points",
        1,
        tempting="neighbours searched in each round (birds have moved); distances without gradient (are meant so)",
    ),
)
