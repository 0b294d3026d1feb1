"""Train a small classifier on made-up data with DistributedDataParallel, on the CPU over gloo.

An ordinary training script: nothing in it knows of dptune. Its options plant the faults that dptune's sample runs show.

    torchrun --nproc-per-node 2 train.py
"""

import argparse
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, DistributedSampler


class Clips(Dataset):
    """Random feature vectors with a label; `slow` seconds are spent on decoding each."""

    def __init__(self, samples, width, slow):
        self.features = torch.randn(samples, width)
        self.labels = torch.randint(0, 10, (samples,))
        self.slow = slow

    def __len__(self):
        return len(self.labels)

    def __getitems__(self, indices):
        if self.slow:
            time.sleep(self.slow * len(indices))
        return self.features[indices], self.labels[indices]


def as_it_is(batch):
    return batch


def build_model(width, layers):
    blocks = [nn.Sequential(nn.Linear(width, width), nn.LayerNorm(width), nn.ReLU()) for _ in range(layers)]
    return nn.Sequential(*blocks, nn.Linear(width, 10))


def parse_arguments():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--accumulate", type=int, default=1, help="micro-batches per optimizer step")
    parser.add_argument("--bucket-cap-mb", type=float, default=None)
    parser.add_argument("--workers", type=int, default=0)
    parser.add_argument("--decode-ms", type=float, default=0.0, help="time to decode one sample")
    return parser.parse_args()


def main():
    args = parse_arguments()
    torch.manual_seed(0)
    torch.set_num_threads(1)
    dist.init_process_group("gloo")

    data = Clips(args.batch * 16, args.width, args.decode_ms / 1e3)
    sampler = DistributedSampler(data)
    loader = DataLoader(data, args.batch, sampler=sampler, num_workers=args.workers, collate_fn=as_it_is)
    buckets = {} if args.bucket_cap_mb is None else {"bucket_cap_mb": args.bucket_cap_mb}
    model = DistributedDataParallel(build_model(args.width, args.layers), **buckets)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    loss_of = nn.CrossEntropyLoss()

    micro, epoch = 0, 0
    while micro < args.steps * args.accumulate:
        sampler.set_epoch(epoch)
        for features, labels in loader:
            loss = loss_of(model(features), labels) / args.accumulate
            loss.backward()
            micro += 1
            if micro % args.accumulate == 0:
                optimizer.step()
                optimizer.zero_grad()
            if micro >= args.steps * args.accumulate:
                break
        epoch += 1

    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
