"""A sparse run of a Hugging Face Trainer script: a small BERT learns whether a sentence has more vowels than consonants.

    python examples/huggingface_trainer.py OUTPUT_FOLDER

Only the lines marked with <- are new. Started again with the same folder, it continues from the last checkpoint.
"""

import sys
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForSequenceClassification, BertConfig, Trainer, TrainingArguments

from autosparse import AutoSparse  # <-
from autosparse.integrations.transformers import sparsify_trainer  # <-

LETTERS, LENGTH, VOWELS = 26, 12, torch.tensor([0, 4, 8, 14, 20])


def sentences(count: int, seed: int) -> list[dict[str, Any]]:
    """Random letters, half of them vowels on average."""
    generator = torch.Generator().manual_seed(seed)
    letters = torch.randint(LETTERS, (count, LENGTH), generator=generator)
    some = VOWELS[torch.randint(len(VOWELS), (count, LENGTH), generator=generator)]
    letters = torch.where(torch.rand(count, LENGTH, generator=generator) < 0.4, some, letters)
    labels = torch.isin(letters, VOWELS).sum(1) > LENGTH // 2
    return [{"input_ids": row, "labels": int(label)} for row, label in zip(letters, labels, strict=True)]


def accuracy(prediction: Any) -> dict[str, float]:
    return {"accuracy": float((prediction.predictions.argmax(-1) == prediction.label_ids).mean())}


def main(folder: str) -> None:
    torch.set_num_threads(1)  # the net is so small that threads cost more than they bring
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=LETTERS,
        hidden_size=32,
        num_hidden_layers=1,
        num_attention_heads=4,
        intermediate_size=64,
        max_position_embeddings=LENGTH,
    )
    args = TrainingArguments(
        output_dir=folder,
        num_train_epochs=6,
        per_device_train_batch_size=32,
        gradient_accumulation_steps=2,
        learning_rate=5e-3,
        weight_decay=0.01,
        logging_strategy="epoch",
        save_strategy="epoch",
        save_total_limit=1,
        report_to="none",
        use_cpu=True,
    )
    trainer = Trainer(
        model=AutoModelForSequenceClassification.from_config(config),  # type: ignore[no-untyped-call]
        args=args,
        train_dataset=sentences(1024, seed=1),
        eval_dataset=sentences(256, seed=2),
        compute_metrics=accuracy,
    )
    sp = sparsify_trainer(trainer, AutoSparse(target_sparsity=0.8), exclude=("classifier",))  # <-
    trainer.train(resume_from_checkpoint=any(Path(folder).glob("checkpoint-*")))
    print(sp.report())  # <-
    print(f"accuracy {trainer.evaluate()['eval_accuracy']:.3f} with {sp.sparsity():.1%} zeros")
    trainer.save_model()  # a plain model: AutoModelForSequenceClassification.from_pretrained(folder) reads it


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "sparse-bert")
