"""vLLM in its own process and environment: `python vllm_worker.py FOLDER LONGEST`.

A line of JSON in, {"prompts", "new"}, a line out: {"answers", "seconds", "times"}, of each token in
seconds from the start. Imports nothing of ours: vLLM pins another torch and other libraries.
"""

import json
import sys
import time

from vllm import LLM, SamplingParams


def main(folder: str, longest: str) -> None:
    out, sys.stdout = sys.stdout, sys.stderr  # keep vLLM's output out of the answers
    llm = LLM(
        folder,
        dtype="float32",
        enforce_eager=True,
        max_model_len=int(longest),
        block_size=32,  # a multiple of 32 on a CPU
        skip_tokenizer_init=True,
        enable_prefix_caching=True,
    )
    print(json.dumps({"ready": True}), file=out, flush=True)
    for line in sys.stdin:
        print(json.dumps(serve(llm.llm_engine, **json.loads(line))), file=out, flush=True)
        llm.reset_prefix_cache()  # the same prompts repeat, and would be cached


def serve(engine, prompts: list, new: list) -> dict:
    answers, times = [[] for _ in prompts], [[] for _ in prompts]
    start = time.perf_counter()
    for number, (prompt, most) in enumerate(zip(prompts, new)):
        asked = SamplingParams(temperature=0, max_tokens=most, ignore_eos=True, detokenize=False)
        engine.add_request(str(number), {"prompt_token_ids": prompt}, asked)
    while engine.has_unfinished_requests():
        outputs = engine.step()
        now = time.perf_counter() - start
        for output in outputs:
            number, tokens = int(output.request_id.split("-")[0]), output.outputs[0].token_ids
            times[number] += [now] * (len(tokens) - len(answers[number]))
            answers[number] = list(tokens)
    return {"answers": answers, "seconds": time.perf_counter() - start, "times": times}


if __name__ == "__main__":
    main(*sys.argv[1:])
