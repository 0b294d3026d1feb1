"""A one-stage detector of vehicles in pictures from above."""

import argparse
import logging

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from drawn import draw, mended
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, Dataset, DistributedSampler

log = logging.getLogger("detector")
STRIDE = 8
SHAPES = ((12.0, 12.0), (24.0, 12.0), (12.0, 24.0))


class Aerial(Dataset):
    def __init__(self, count, size, most):
        self.count, self.size, self.most = count, size, most

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        generator = torch.Generator().manual_seed(index)
        boxes = torch.rand(self.most, 4, generator=generator)
        boxes[:, :2] *= self.size - 26
        boxes[:, 2:] = boxes[:, :2] + 10 + 14 * boxes[:, 2:]
        picture = torch.rand(3, self.size, self.size, generator=generator)
        for x, y, right, low in boxes.long().tolist():
            picture[:, y:low, x:right] += 0.5
        return picture, boxes


class Detector(nn.Module):
    def __init__(self, width):
        super().__init__()
        layers, inside = [], 3
        for out in (width, 2 * width, 4 * width):
            layers += [nn.Conv2d(inside, out, 3, 2, 1), nn.GroupNorm(4, out), nn.ReLU()]
            layers += [nn.Conv2d(out, out, 3, 1, 1), nn.GroupNorm(4, out), nn.ReLU()]
            inside = out
        self.body = nn.Sequential(*layers)
        self.head = nn.Conv2d(inside, 5 * len(SHAPES), 1)

    def forward(self, x):
        return self.head(self.body(x)).unflatten(1, (len(SHAPES), 5)).permute(0, 1, 3, 4, 2).flatten(1, 3)


def make_anchors(size):
    cells = (torch.arange(size // STRIDE) + 0.5) * STRIDE
    y, x = torch.meshgrid(cells, cells, indexing="ij")
    anchors = [torch.stack([x - w / 2, y - h / 2, x + w / 2, y + h / 2], -1).flatten(0, 1) for w, h in SHAPES]
    return torch.cat(anchors)


def iou(one, others):
    """Overlap of one box with many."""
    inner = (torch.minimum(one[2:], others[:, 2:]) - torch.maximum(one[:2], others[:, :2])).clamp(min=0)
    shared = inner[:, 0] * inner[:, 1]
    areas = (others[:, 2] - others[:, 0]) * (others[:, 3] - others[:, 1])
    return shared / ((one[2] - one[0]) * (one[3] - one[1]) + areas - shared)


def iou_of_all(boxes, anchors):
    low = torch.maximum(boxes[:, :, None, :2], anchors[:, :2])
    inner = (torch.minimum(boxes[:, :, None, 2:], anchors[:, 2:]) - low).clamp(min=0)
    shared = inner[..., 0] * inner[..., 1]
    of_boxes = (boxes[..., 2:] - boxes[..., :2]).prod(-1).unsqueeze(2)
    return shared / (of_boxes + (anchors[:, 2:] - anchors[:, :2]).prod(-1) - shared)


def build_targets(boxes, anchors, least=0.4):
    """For each anchor of each picture: whether it has a box, and which."""
    if mended(1):
        best, which = iou_of_all(boxes, anchors).max(1)
        return (best > least).float(), boxes.gather(1, which.unsqueeze(2).expand(-1, -1, 4))
    has, which = torch.zeros(len(boxes), len(anchors)), torch.zeros(len(boxes), len(anchors), 4)
    for picture in range(len(boxes)):
        best = torch.zeros(len(anchors))
        for box in boxes[picture]:
            overlap = iou(box, anchors)
            for at in (overlap > best).nonzero().flatten().tolist():
                best[at] = overlap[at]
                which[picture, at] = box
        has[picture] = (best > least).float()
    return has, which


def loss_of(out, has, wanted, anchors):
    of_kind = F.binary_cross_entropy_with_logits(out[..., 0], has)
    off = (wanted - anchors) / STRIDE
    of_place = (F.smooth_l1_loss(out[..., 1:], off, reduction="none").sum(-1) * has).sum() / has.sum().clamp(min=1)
    return of_kind + of_place


def look_at_gradients(model):
    for name, parameter in model.named_parameters():
        if mended(2):
            log.debug("%s: %s", name, parameter.grad)
        else:
            log.debug(f"{name}: {parameter.grad}")


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--size", type=int, default=96)
    parser.add_argument("--batch", type=int, default=draw("batch", 6, 7))
    parser.add_argument("--boxes", type=int, default=5)
    parser.add_argument("--width", type=int, default=draw("width", 16, 20))
    parser.add_argument("--steps", type=int, default=240)
    parser.add_argument("--verbose", action="store_true")
    args = parser.parse_args()
    logging.basicConfig(level=logging.DEBUG if args.verbose else logging.INFO)

    dist.init_process_group("gloo")
    torch.manual_seed(2)
    data = Aerial(12 * args.steps, args.size, args.boxes)
    sampler = DistributedSampler(data, drop_last=True)
    loader = DataLoader(data, args.batch, sampler=sampler, drop_last=True)
    anchors = make_anchors(args.size)
    model = DDP(Detector(args.width))
    optimizer = torch.optim.SGD(model.parameters(), lr=5e-3, momentum=0.9)
    for step, (pictures, boxes) in enumerate(loader, 1):
        has, wanted = build_targets(boxes, anchors)
        loss = loss_of(model(pictures), has, wanted, anchors)
        optimizer.zero_grad()
        loss.backward()
        look_at_gradients(model)
        optimizer.step()
        if step % 40 == 0 and dist.get_rank() == 0:
            log.info("step %d: %.4f", step, loss.item())
        if step == args.steps:
            break
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
