// The requests of a document as one JSON object: the form of the reference harness's requests.jsonl. README of the goldens' folder eval/.
#pragma once
#include "based/eval/task.h"

namespace based {

// "doc", "source", "fewshot" if there are examples, "gold", "contexts" (text, ids, sizes, hashes) and "requests" (type, continuation, ids
// and the stub model's answer). A document with a rolling request has the sizes and hashes of its text and its windows instead.
Json document_requests(const Tokenizer& tokenizer, const EvalDocument& document, int64_t max_length);

}  // namespace based
