"""A search service: photographs by a sentence, over HTTP.

    pip install fastapi uvicorn
    crossret encode RUN DATA --split test --output embeddings
    python examples/search_service.py RUN embeddings --ids DATA/test_ids.txt
    curl 'localhost:8000/search?caption=a+small+red+circle&k=3'

The corpus stays on the disk and is read as it is scored.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Annotated

from fastapi import FastAPI, HTTPException, Query

import crossret


def service(run: Path, embeddings: Path, ids: Path | None = None) -> FastAPI:
    """The application of one model and one corpus."""
    retriever = crossret.load(run)
    names = ids.read_text(encoding="utf-8").splitlines() if ids else None
    app = FastAPI(title="crossret")

    @app.get("/search")
    def search(
        caption: Annotated[str, Query(max_length=500)], k: Annotated[int, Query(ge=1, le=100)] = 10
    ) -> list[dict]:
        try:
            scores, indices = retriever.search([caption], embeddings, k=k)
        except ValueError as error:  # for instance a caption without words
            raise HTTPException(422, str(error)) from error
        found = zip(indices[0].tolist(), scores[0].tolist(), strict=True)
        return [{"image": names[index] if names else index, "score": score} for index, score in found]

    return app


if __name__ == "__main__":
    import uvicorn

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path)
    parser.add_argument("embeddings", type=Path)
    parser.add_argument("--ids", type=Path)
    options = parser.parse_args()
    uvicorn.run(service(options.run, options.embeddings, options.ids))
