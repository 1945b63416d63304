"""Serves model.bin: `python -m uvicorn serve:app`, in a folder with it, read_model.py and this."""

import asyncio
import json

import numpy as np
from read_model import Model

WINDOW = 0.002  # Seconds that the first request of a batch waits for others.
model = Model("model.bin").compile()
busy = asyncio.Lock()
batch: asyncio.Task
gathered: list = []


async def run_batch():
    """Predicts all rows that have been gathered."""
    async with busy:  # While a batch is computed, the next one gathers.
        await asyncio.sleep(WINDOW)
        inputs = np.concatenate(gathered)
        gathered[:] = []
        return await asyncio.to_thread(model, inputs)


async def predict(rows):
    """Predicts the rows of a request together with those of others."""
    global batch
    batch = batch if gathered else asyncio.create_task(run_batch())
    start = sum(map(len, gathered))
    gathered.append(rows)
    outputs = await asyncio.shield(batch)  # Others need it if this client goes away.
    return {name: one[start : start + len(rows)].tolist() for name, one in outputs.items()}


async def app(scope, receive, send):
    """Answers a request whose body is rows [N, ...] in JSON."""
    assert scope["type"] == "http"
    body = b""
    message = {"more_body": True}
    while message.get("more_body"):
        message = await receive()
        body += message.get("body", b"")
    try:
        rows = model.check(np.array(json.loads(body), model.dtype))
        if not np.isfinite(rows).all():
            raise ValueError("inputs hold NaN, null or infinities: send finite numbers")
    except (ValueError, TypeError, OverflowError) as error:
        status = 400
        content = {"error": str(error)}
    else:
        status = 200
        content = await predict(rows)
    text = json.dumps(content, allow_nan=False)
    headers = [(b"content-type", b"application/json")]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": text.encode()})
