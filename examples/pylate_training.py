"""ColBERT trained by PyLate, with crossret's MaxSim in its losses, evaluators and reranking.

    pip install 'crossret[pylate]'
    python examples/pylate_training.py MODEL OUTPUT

MODEL is any encoder of the Hugging Face Hub, or its directory. The data here are a few sentences: put yours in.
"""

from __future__ import annotations

import sys

from datasets import Dataset
from pylate import losses, models, rank, utils
from sentence_transformers import SentenceTransformerTrainer, SentenceTransformerTrainingArguments

from crossret.compat import pylate as crossret_in_pylate

QUERIES = ["who plays in the park", "what stands on the table", "where does the river end", "which dog is brown"]
POSITIVES = [
    "children play football in the park",
    "a blue cup stands on the table",
    "the river ends in a lake",
    "a brown dog",
]
NEGATIVES = ["a red bus in the street", "the moon above a field", "two birds on a wire", "a green house"]


def main(name: str, output: str, steps: int = 20) -> list[list[dict]]:
    """Train, and return the documents of every query, best first."""
    crossret_in_pylate.patch()
    model = models.ColBERT(name, device="cpu", embedding_size=16, query_length=16, document_length=32)
    trainer = SentenceTransformerTrainer(
        model=model,
        args=SentenceTransformerTrainingArguments(
            output_dir=output,
            max_steps=steps,
            per_device_train_batch_size=4,
            learning_rate=1e-3,
            logging_steps=5,
            save_strategy="no",
            report_to=[],
            use_cpu=True,
        ),
        train_dataset=Dataset.from_dict({"query": QUERIES, "positive": POSITIVES, "negative": NEGATIVES}),
        loss=losses.Contrastive(model=model),
        data_collator=utils.ColBERTCollator(model.tokenize),
    )
    trainer.train()
    documents = POSITIVES + NEGATIVES
    found = rank.rerank(
        documents_ids=[list(range(len(documents)))] * len(QUERIES),
        queries_embeddings=model.encode(QUERIES, is_query=True),
        documents_embeddings=[model.encode(documents, is_query=False)] * len(QUERIES),
    )
    for query, best in zip(QUERIES, found, strict=True):
        print(f"{query}: {documents[best[0]['id']]}")
    return found


if __name__ == "__main__":
    main(*sys.argv[1:3])
