"""Model, records and training: plain PyTorch, and nothing of federation."""

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, Subset, TensorDataset

TRAINING = 1500  # records; the other 297 are the test set


class Net(nn.Module):
    """A small convolutional network for images of 8 x 8 pixels."""

    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(nn.Conv2d(1, 8, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2))
        self.head = nn.Linear(8 * 4 * 4, 10)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return self.head(self.features(images).flatten(1))


def load_data(partition_id: int, num_partitions: int, batch_size: int) -> tuple[DataLoader, DataLoader]:
    """One client's records, four fifths of them to train on."""
    mine = range(partition_id, TRAINING, num_partitions)
    cut = len(mine) * 4 // 5
    training, validation = Subset(_digits(), mine[:cut]), Subset(_digits(), mine[cut:])
    return DataLoader(training, batch_size, shuffle=True), DataLoader(validation, batch_size)


def load_test_data() -> DataLoader:
    """A test set that is public."""
    return DataLoader(Subset(_digits(), range(TRAINING, 1797)), 128)


def _digits() -> TensorDataset:
    digits = load_digits()
    return TensorDataset(torch.tensor(digits.images, dtype=torch.float32)[:, None] / 16, torch.tensor(digits.target))


def train(net: nn.Module, loader: DataLoader, epochs: int, lr: float, device: torch.device) -> float:
    """Trains in place; returns the mean loss."""
    net.to(device).train()
    optimizer = torch.optim.SGD(net.parameters(), lr=lr, momentum=0.9)
    total = 0.0
    for _ in range(epochs):
        for images, labels in loader:
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(net(images.to(device)), labels.to(device))
            loss.backward()
            optimizer.step()
            total += loss.item()
    return total / (epochs * len(loader))


def test(net: nn.Module, loader: DataLoader, device: torch.device) -> tuple[float, float]:
    """Mean loss and accuracy."""
    net.to(device).eval()
    loss, correct, seen = 0.0, 0, 0
    with torch.no_grad():
        for images, labels in loader:
            logits = net(images.to(device))
            loss += nn.functional.cross_entropy(logits, labels.to(device), reduction="sum").item()
            correct += int((logits.argmax(1) == labels.to(device)).sum())
            seen += len(labels)
    return loss / seen, correct / seen
