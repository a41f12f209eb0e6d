"""Write docs/leakbench.ipynb, and run it so that its outputs are in it.

    LEAKBENCH_DATA=... python scripts/make_notebook.py

With a data root the table is Adult, else Breast Cancer.
"""

from __future__ import annotations

from pathlib import Path

import nbformat
from nbclient import NotebookClient

NOTEBOOK = Path(__file__).resolve().parents[1] / "docs" / "leakbench.ipynb"
SECONDS = 600
"""A cell may take."""

CELLS = (
    ("markdown", """\
# What does one update of your model give away?

Two trainings as they are in practice: a ResNet-18 with GroupNorm on a folder of images under
Opacus, and an MLP with a single logit on rows of a table. [api.md](api.md) says what every
argument means."""),
    ("markdown", """\
## A folder of images, a ResNet-18, an Opacus engine

First the set-up that you have already. The folder is made of embedded CIFAR-10 samples."""),
    ("code", """\
import os
import tempfile
import warnings
from pathlib import Path

import torch
from opacus import PrivacyEngine
from torch import nn
from torch.utils.data import DataLoader
from torchvision.datasets import ImageFolder
from torchvision.models import resnet18
from torchvision.transforms import ToTensor
from torchvision.utils import save_image

import leakbench as lb
from leakbench.data import load

warnings.filterwarnings("ignore")  # of Opacus, about secure random numbers
sample, folder = load("cifar10"), Path(tempfile.mkdtemp())
for number in range(200):
    image, label = sample.candidates[number], int(sample.candidate_labels[number])
    place = folder / sample.class_name(label)
    place.mkdir(exist_ok=True)
    save_image(image, place / f"{number:03}.png")"""),
    ("code", """\
torch.manual_seed(0)
data = ImageFolder(folder, transform=ToTensor())
model = resnet18(num_classes=10, norm_layer=lambda width: nn.GroupNorm(32, width))
engine = PrivacyEngine()
model, optimizer, loader = engine.make_private(
    module=model, optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
    data_loader=DataLoader(data, batch_size=8), noise_multiplier=1.0, max_grad_norm=1.0,
)"""),
    ("markdown", """\
Now the question. `DPConfig` reads the mechanism off the engine, the optimiser and the loader; the
leak is the gradient of one batch, as training would send it."""),
    ("code", """\
config = lb.DPConfig.from_opacus(engine, optimizer, loader, epochs=3)
print(config.describe())
images = torch.stack([image for image, _ in data])
labels = torch.tensor(data.targets)
x, y = images[::20][:8], labels[::20][:8]
leaks = {
    name: lb.leak(model, x, y, defense=defense, observer="type2_batch", candidates=(images, labels))
    for name, defense in (("no defense", None), ("Opacus", config))
}
results = {name: lb.attack(leak, "analytic_head") for name, leak in leaks.items()}
{name: int(result.score().identified.sum()) for name, result in results.items()}"""),
    ("markdown", """\
Of 8 images, so many are named among 200, by a single forward pass. What the last layer tells of the
batch without a defense, label by label:"""),
    ("code", 'leaks["no defense"].head()'),
    ("code", 'results["Opacus"].score()[["label", "label_guess", "rank", "identified", "strict"]]'),
    ("markdown", """\
The whole audit: every observer with what is proved and what was measured of this very optimiser,
the claim, and what to change, as a page to hand on. [audit.md](audit.md) says how."""),
    ("code", """\
report = lb.audit(
    model, data, config, mechanism=optimizer, claim=lb.Claim(epsilon=1, delta=1e-5),
    candidates=100, victims=4, attacks=["candidates", "analytic_head"], attack_seconds=20,
)
report.save(folder.parent / "images.html")
print(*(f"{one.observer}: {one.verdict}" for one in report.observers), sep="\\n")
print(report.claims[0].statement, report.claims[0].verdict, sep=": ")
print(report.advice[0].sentence)"""),
    ("markdown", """\
## Rows of a table, an MLP, a single logit

Adult where a data root is at hand, else Breast Cancer. Who sees the gradients of single examples
inside a step sees DP-SGD before its noise, which enters their sum: `"type2"`. What a step gives
away is `"type2_batch"`, here of four clients with one row each."""),
    ("code", """\
rows = load("adult" if "LEAKBENCH_DATA" in os.environ else "breast_cancer")
torch.manual_seed(0)
mlp = nn.Sequential(nn.Linear(rows.input_shape[0], 64), nn.ReLU(), nn.Linear(64, 1))
x, y = rows.candidates[:4, None], rows.candidate_labels[:4, None]
public = (rows.public[:200], rows.public_labels[:200])
dp_sgd = {"name": "dp_sgd", "parameters": {"clip": 1.0, "noise_multiplier": 1.0}}
for observer in ("type2", "type2_batch"):
    leak = lb.leak(mlp, x, y, loss="bce", defense=dp_sgd, observer=observer, public=public)
    table = lb.attack(leak, ["analytic", "candidates"]).score()
    print(observer, table.groupby("attack")[["strict", "identified"]].sum().to_dict("index"))"""),
    ("markdown", """\
An update of two local steps of two rows, where the attacker is told the labels:"""),
    ("code", """\
update = lb.leak(
    mlp, x.reshape(1, 4, -1), y.reshape(1, 4), loss="bce", observer="type1",
    local_steps=2, learning_rate=0.1, labels_known=True,
)
result = lb.attack(update, "gradinv", steps=200, total_variation=0.0)
result.score(candidates=public)[["status", "mse_clamped", "rank", "baselines.nearest_public"]]"""),
    ("markdown", """\
And its audit, of a configuration that is written down. A few seconds of training say what the
advised noise costs."""),
    ("code", """\
config = lb.DPConfig(
    clip=1.0, noise_multiplier=0.5, batch_size=32, examples=len(rows.train), steps=200,
    learning_rate=0.5,
)
mlp_report = lb.audit(
    mlp, (rows.train, rows.train_labels), config, loss="bce", claim=lb.Claim(epsilon=8, delta=1e-5),
    candidates=200, attacks=["candidates", "analytic", "gradinv"], trials=1000, train_seconds=15,
)
mlp_report.save(folder.parent / "rows.html")
print(*(f"{one.observer}: {one.verdict}" for one in mlp_report.observers), sep="\\n")
print(mlp_report.claims[0].statement, mlp_report.claims[0].verdict, sep=": ")
print(mlp_report.advice[0].sentence)"""),
)  # fmt: skip
"""Kind and text of every cell."""


def written() -> nbformat.NotebookNode:
    """The notebook without outputs; the same text gives the same notebook."""
    notebook = nbformat.v4.new_notebook()
    make = {"markdown": nbformat.v4.new_markdown_cell, "code": nbformat.v4.new_code_cell}
    for number, (kind, text) in enumerate(CELLS):
        cell = make[kind](text)
        cell["id"] = f"cell-{number:02}"
        notebook.cells.append(cell)
    notebook.metadata["kernelspec"] = {
        "name": "python3", "display_name": "Python 3", "language": "python",
    }  # fmt: skip
    return notebook


def executed() -> nbformat.NotebookNode:
    """The same with its outputs, without times and paths of this machine."""
    notebook = written()
    NotebookClient(notebook, timeout=SECONDS, record_timing=False).execute()
    notebook.metadata.pop("language_info", None)
    return notebook


if __name__ == "__main__":
    nbformat.write(executed(), NOTEBOOK)
