"""Stained glass from a small code: an autoencoder and a critic of its pictures, manual optimisation in Lightning."""

import logging
import warnings

import lightning as L
import torch
import torch.nn as nn
import torch.nn.functional as F
from drawn import draw
from torch.utils.data import DataLoader, TensorDataset

warnings.filterwarnings("ignore")
logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)


def panes(count, size, seed):
    """Panes of one colour each, between dark leads."""
    g = torch.Generator().manual_seed(seed)
    centres = torch.rand(count, 7, 2, generator=g) * size
    colours = torch.rand(count, 7, 3, generator=g)
    at = torch.stack(torch.meshgrid(torch.arange(size), torch.arange(size), indexing="ij"), -1).float().view(-1, 2)
    near, which = torch.cdist(at.expand(count, -1, -1), centres).topk(2, largest=False)
    image = colours.gather(1, which[..., :1].expand(-1, -1, 3))
    image = image.masked_fill((near[..., 1:] - near[..., :1]) < 0.8, 0.0)
    return image.view(count, size, size, 3).permute(0, 3, 1, 2).contiguous()


def down(cin, cout):
    return nn.Sequential(nn.Conv2d(cin, cout, 4, 2, 1), nn.GroupNorm(4, cout), nn.SiLU())


def up(cin, cout):
    return nn.Sequential(nn.ConvTranspose2d(cin, cout, 4, 2, 1), nn.GroupNorm(4, cout), nn.SiLU())


class GlassModel(L.LightningModule):
    def __init__(self, width, code=8, weight=0.05):
        super().__init__()
        self.save_hyperparameters()
        self.automatic_optimization = False
        self.encoder = nn.Sequential(down(3, width), down(width, 2 * width), nn.Conv2d(2 * width, code, 1))
        self.decoder = nn.Sequential(
            nn.Conv2d(code, 2 * width, 1), up(2 * width, width), up(width, width), nn.Conv2d(width, 3, 3, padding=1)
        )
        self.critic = nn.Sequential(down(3, width), down(width, 2 * width), nn.Conv2d(2 * width, 1, 3, padding=1))

    def forward(self, image):
        return self.decoder(self.encoder(image)).sigmoid()

    def training_step(self, batch, batch_idx):
        (image,) = batch
        opt_auto, opt_critic = self.optimizers()

        self.toggle_optimizer(opt_auto)
        made = self(image)
        error = F.l1_loss(made, image)
        loss = error - self.hparams.weight * self.critic(made).mean()
        opt_auto.zero_grad()
        self.manual_backward(loss)
        opt_auto.step()
        self.untoggle_optimizer(opt_auto)

        self.toggle_optimizer(opt_critic)
        score_real, score_made = self.critic(torch.cat([image, made.detach()])).chunk(2)
        critic_loss = F.relu(1 - score_real).mean() + F.relu(1 + score_made).mean()
        opt_critic.zero_grad()
        self.manual_backward(critic_loss)
        opt_critic.step()
        self.untoggle_optimizer(opt_critic)
        self.log_dict({"error": error, "critic": critic_loss}, on_step=False, on_epoch=True)

    def on_train_epoch_end(self):
        told = self.trainer.callback_metrics
        print(f"epoch {self.current_epoch} error {told['error']:.4f} critic {told['critic']:.4f}", flush=True)

    def configure_optimizers(self):
        auto = [*self.encoder.parameters(), *self.decoder.parameters()]
        return [
            torch.optim.Adam(auto, lr=2e-3, betas=(0.5, 0.9)),
            torch.optim.Adam(self.critic.parameters(), lr=1e-3, betas=(0.5, 0.9)),
        ]


def main():
    L.seed_everything(44)
    batch = draw("batch", 16, 18)
    loader = DataLoader(TensorDataset(panes(30 * batch, 32, seed=5)), batch, shuffle=True, drop_last=True)
    trainer = L.Trainer(
        max_epochs=3,
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(GlassModel(draw("width", 16, 20)), loader)


if __name__ == "__main__":
    main()
