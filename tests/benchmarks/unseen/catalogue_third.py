"""The third draw of scripts, by someone who had seen neither rules nor results. Sealed as a whole."""

from __future__ import annotations

from catalogue import Fault, Script

THIRD = (
    Script(
        "click_rows",
        "tabular, clicks, plain loop with argparse",
        2,
        (
            Fault(
                "a table that lies in memory is read row by row: two thousand rows are indexed one at a time and "
                "stacked again for each batch",
                "TensorDataset per-sample indexing and collate, large batch, data loading",
                "make_loader",
                (
                    "return DataLoader(data, batch_size=batch, sampler=sampler, drop_last=True), sampler",
                    "for numbers, kinds, clicked in loader",
                ),
                "index a batch at a time: batch_size=None with a BatchSampler, __getitems__, or slices of the tensors",
                "only more workers where ranks use all cores; a larger batch (rows cost the same each)",
            ),
            Fault(
                "each rank asks for eight threads though the machine has fewer cores than that for all ranks",
                "torch.set_num_threads too large, oversubscription, threads per rank",
                "set_up",
                ("torch.set_num_threads(args.threads)", '"--threads", type=int', "    set_up(args)"),
                "as many threads per rank as there are cores per rank (leave OMP_NUM_THREADS of the launcher alone)",
                "more threads; calling the machine or a rank slow",
            ),
        ),
    ),
    Script(
        "a2c_advantages",
        "rl advantage actor-critic, plain loop with dataclass",
        1,
        (
            Fault(
                "advantages are computed maze by maze and moment by moment in Python, with a dozen operations on "
                "single numbers each",
                "GAE double Python loop over environments, many tiny operations",
                "advantages",
                (
                    "delta = rewards[t, maze]",
                    "for maze in range(rewards.shape[1])",
                    'gain = advantages(rollout["rewards"]',
                ),
                "go back in time once, over all mazes at a time",
                "fewer mazes or a shorter horizon (it changes what is learned); blaming the network or the backward",
            ),
            Fault(
                "what is seen is drawn maze by maze at each moment, in five small operations each",
                "environments observed one at a time in Python, not vectorised",
                "picture",
                (
                    "seen[1, self.at[maze, 0], self.at[maze, 1]] = 1",
                    "seen[2, self.goal[maze, 0], self.goal[maze, 1]] = 1",
                    "seen[0] = self.walls[maze]",
                    "seen = torch.zeros(3, self.side, self.side)",
                    "return torch.stack([self.picture(maze)",
                    "following, rewards, dones = mazes.step(actions)",
                    "rollout, seen = collect(mazes, model, seen, config)",
                ),
                "draw what is seen in all mazes at once, with one indexed write for each layer",
                "fewer mazes (it changes what is learned); mazes in processes of their own as the first step",
            ),
        ),
    ),
    Script(
        "anchor_targets",
        "vision, detection, plain loop with argparse",
        2,
        (
            Fault(
                "boxes are matched to anchors box by box and anchor by anchor in Python",
                "target assignment in Python loops, IoU per box, many tiny operations",
                "build_targets",
                (
                    "for at in (overlap > best).nonzero()",
                    "for box in boxes[picture]",
                    "overlap = iou(box, anchors)",
                    "which[picture, at] = box",
                    "best[at] = overlap[at]",
                    "has, wanted = build_targets(boxes, anchors)",
                ),
                "overlaps of all boxes with all anchors at once and a maximum over boxes (or in the loader's workers)",
                "fewer anchors or boxes; blaming the loss, DDP or a slow rank",
            ),
            Fault(
                "gradients are turned into text for debug messages in each step though debug messages are off",
                "f-string in log.debug, tensor repr each step, logging",
                "look_at_gradients",
                ('log.debug(f"{name}: {parameter.grad}")', "        look_at_gradients(model)"),
                "give the logger the arguments (%s) or ask isEnabledFor first; best norms, rarely",
                "only a higher log level (the text is made before the level is asked); removing all logging",
            ),
        ),
    ),
    Script(
        "crf_tagger",
        "text, named entities, plain loop with argparse",
        1,
        (
            Fault(
                "the partition function goes through the tags one by one in Python at each word",
                "CRF forward algorithm loop over tags, many small operations",
                "partition",
                (
                    "following.append(torch.logsumexp(scores, dim=1))",
                    "for tag in range(self.tags)",
                    "scores = alphas + self.transitions[tag]",
                    "alphas = torch.stack(following, dim=1)",
                    "loss = model(words, tags)",
                    "loss.backward()",
                ),
                "one log-sum-exp over the matrix of tags for each word",
                "fewer tags; a smaller LSTM; a larger batch as the only cure",
            ),
        ),
    ),
    Script(
        "lightning_vae",
        "lightning, vision, variational autoencoder",
        2,
        (
            Fault(
                "each picture is encoded twice: for the reconstruction and again for the divergence, both with a "
                "backward pass",
                "encoder forward run twice per step, duplicate computation",
                "losses",
                ("mean, spread = self.encode(x)", "made = self(x)"),
                "encode once and use mean and spread for both terms",
                "a smaller encoder; no_grad for the second pass (the divergence would not be learned)",
            ),
        ),
    ),
    Script(
        "hf_micro_batches",
        "hf Trainer, text classification, accumulation",
        2,
        (
            Fault(
                "a batch of sixteen short texts is put together from sixteen passes of one text each, though memory "
                "would hold all at once",
                "per_device_train_batch_size=1 with many accumulation steps, tiny micro-batches",
                "main",
                (
                    "gradient_accumulation_steps=1 if MENDED else 16",
                    "per_device_train_batch_size=16 if MENDED",
                    "trainer.train()",
                ),
                "a batch of sixteen (or eight) per device and as much less accumulation: what is learned is the same",
                "fewer accumulation steps without a larger batch; no_sync (the Trainer has it); more loader workers",
            ),
        ),
    ),
    Script(
        "accelerate_hard_samples",
        "accelerate, contrastive search",
        2,
        (
            Fault(
                "a record with loss and embedding of each sample is pickled and gathered from all processes in each "
                "step, to keep the few hardest",
                "gather_object every step, pickle of many small tensors, metric communication",
                "add",
                (
                    "for record in gather_object(records)",
                    '{"index": index, "loss": loss',
                    "keep(indices, losses.detach(), found.detach())",
                ),
                "choose the hardest on each process first and gather once an epoch, or gather tensors, not objects",
                "gradient compression or larger buckets; blaming DDP's all-reduce; calling one rank slow",
            ),
        ),
    ),
    Script(
        "fsdp_saves",
        "fsdp fully_shard, protein encoder",
        2,
        (
            Fault(
                "weights and moments are written to disk every five steps, while training waits",
                "dcp.save too often, synchronous checkpoint",
                "maybe_save",
                (
                    'dcp.save({"model": weights',
                    "weights, moments = get_state_dict(model, optimizer)",
                    "1000 if MENDED else 5",
                    "checkpointer.maybe_save(model, optimizer, step)",
                ),
                "save every some hundred steps (or minutes), or asynchronously with dcp.async_save",
                "no checkpoints at all; giving up sharding; saving on one rank only (it hangs)",
            ),
        ),
        figure="mean",
    ),
    Script(
        "load_decoder",
        "time series, encoder and decoder, plain loop",
        2,
        (
            Fault(
                "the decoder runs anew over all hours so far for each hour of the target, though all of them are known",
                "decoder loop over target positions in training, no parallel teacher forcing",
                "forward",
                (
                    "written = self.decode(target[:, :hour], memory)",
                    "for hour in range(1, target.shape[1])",
                    "nn.functional.mse_loss(model(past, target)",
                    "loss.backward()",
                ),
                "decode all hours in one pass: the causal mask is there already",
                "a shorter horizon; a cache of keys and values as the first step; a smaller decoder",
            ),
        ),
    ),
    Script(
        "room_echo",
        "audio, commands with reverberation",
        1,
        (
            Fault(
                "rooms of thousands of taps are put onto the sound by a direct convolution",
                "long FIR filter with conv1d, direct convolution, FFT convolution",
                "__call__",
                (
                    "return F.conv1d(padded.unsqueeze(0)",
                    "logits = model(reverb(waves))",
                ),
                "multiply the spectra (torch.fft, or fftconvolve of torchaudio), of a length that factors well",
                "shorter rooms without a word on what is lost; blaming the network; loader workers alone",
            ),
        ),
    ),
    Script(
        "spectral_critic",
        "gan, textures, spectral normalisation",
        1,
        (
            Fault(
                "each pass of the discriminator computes all singular values of each of its weights, and goes back "
                "through them",
                "svdvals of weights each forward, exact spectral norm, no power iteration",
                "forward",
                (
                    "largest = torch.linalg.svdvals(weight.flatten(1))[0]",
                    "judged_real, judged_fake = discriminator(",
                    "loss_g = -discriminator(",
                ),
                "torch.nn.utils.parametrizations.spectral_norm: one step of power iteration per pass",
                "no normalisation (it changes what is learned); fewer discriminator steps",
            ),
        ),
    ),
    Script(
        "circuit_batches",
        "graph, batches of circuits",
        1,
        (
            Fault(
                "the circuits of a batch share one dense adjacency of thousands by thousands that is nearly all zero",
                "dense block-diagonal adjacency, dense matmul for message passing",
                "gather",
                (
                    "return edges @ x",
                    "adjacency = torch.zeros(len(gates), len(gates))",
                    "x = layer(x, edges)",
                ),
                "sum over the edges with index_add, or a sparse (CSR) adjacency",
                "smaller batches as the only cure; a smaller hidden size; mixed precision as the first step",
            ),
        ),
    ),
    Script(
        "accelerate_decay",
        "accelerate, masked sensor windows",
        2,
        (
            Fault(
                "the prepared schedule steps once for each process in each step, but its length counts the batches of "
                "one process: the rate is at zero after half of the training",
                "Accelerate scheduler steps num_processes times, learning rate decays too fast",
                "main",
                (
                    "schedule = accelerator.prepare(schedule)",
                    "total = args.epochs * len(loader)",
                    "step_scheduler_with_optimizer=not MENDED",
                    "            schedule.step()",
                ),
                "a length times the number of processes, or leave the schedule unprepared (or "
                "step_scheduler_with_optimizer=False)",
                "a larger rate to make up for it",
                "risk",
            ),
        ),
    ),
    Script(
        "fsdp_halves",
        "fsdp fully_shard, continued language model",
        2,
        (
            Fault(
                "weights and moments are bfloat16 themselves: steps of a rate of 1e-5 are lost in rounding",
                "pure bfloat16 parameters and optimizer states, no float32 master weights, small updates lost",
                "load_pretrained",
                (
                    "return model.to(torch.bfloat16)",
                    "policy = MixedPrecisionPolicy(",
                    "optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr",
                    "model = load_pretrained(args)",
                ),
                "keep the weights in float32: the policy casts them for the passes already",
                "praise for the memory saved; a larger rate to make up for it; a gradient scaler",
                "risk",
            ),
        ),
    ),
    Script(
        "new_head",
        "audio, finetuning, class",
        1,
        (
            Fault(
                "the last layer is replaced after the optimizer was made: the new one is never trained",
                "parameters replaced after optimizer construction, head not in optimizer",
                "adapt",
                (
                    "self.model.fc = nn.Linear(self.model.fc.in_features, birds)",
                    "self.optimizer = torch.optim.AdamW(self.model.parameters()",
                ),
                "replace the layer first and make the optimizer then (or add_param_group)",
                "praise for a small optimizer; a larger rate; freezing the body",
                "risk",
            ),
        ),
    ),
    Script(
        "same_checkpoint",
        "recommender, next item, Trainer class",
        2,
        (
            Fault(
                "both ranks write the checkpoint to the same file at the same time: it may be torn",
                "torch.save on all ranks to the same path, race, corrupt checkpoint",
                "save",
                ("torch.save(state, self.path)", "if MENDED and self.rank", "if self.step % self.args.save_every"),
                "save on rank 0 only, best to another name that is then moved into place",
                "rarer checkpoints as the cure; a barrier around it (both would still write)",
                "risk",
            ),
        ),
    ),
    Script("calm_hf_masked", "hf Trainer, masked language model", 2, tempting="masking in collate; packing; buckets"),
    Script(
        "calm_lightning_rivers",
        "lightning, time series",
        1,
        tempting="loader workers (a batch is cut at once); validation too often",
    ),
    Script(
        "calm_accelerate_diffusion",
        "accelerate, diffusion with averaged weights",
        2,
        tempting="the average costs time; the average is not synchronised (it is the same on all ranks)",
    ),
    Script("calm_fsdp_vit", "fsdp fully_shard, satellite tiles", 2, tempting="sharding finer or coarser; reshard"),
    Script(
        "calm_baskets", "recommender, bags of items", 1, tempting="large tables; several optimizers; sparse is slow"
    ),
    Script("calm_credit", "tabular, plain loop", 2, tempting="no sampler is set anew; evaluation bypasses DDP"),
    Script("calm_dqn", "rl double Q-learning", 1, tempting="environment as a bottleneck; target network trains"),
    Script("calm_captions", "vision and text, captions", 2, tempting="loader workers; recurrent loop; clipping"),
)
