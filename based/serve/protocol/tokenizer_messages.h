// Requests and replies of /tokenize, /detokenize, /tokenizer_info and /v1/models, as vLLM and lm-eval's remote tokenizer have them.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "based/data/tokenizer.h"
#include "based/serve/protocol/generation_fields.h"

namespace based {

// {"prompt": "…", "add_special_tokens": …, "return_token_strs": …} -> {"tokens": [ids], "count", "max_model_len", "token_strs"}. Text that
// spells a special token is that token whatever `add_special_tokens` says: clients look up the id of <|endoftext|> so. No token is ever
// added. `max_model_len`: 0 is written as null.
std::string tokenize_reply(const Json& request, const Tokenizer& tokenizer, const ModelFacts& model, int64_t max_model_len);
// {"tokens": [ids]} -> {"prompt": "…"}
std::string detokenize_reply(const Json& request, const Tokenizer& tokenizer, const ModelFacts& model);
// {"eos_token", "bos_token", "pad_token", "chat_template"}: the token that ends documents also begins them, as for GPT-2. An empty
// `chat_template` is null.
std::string tokenizer_info_reply(const Tokenizer& tokenizer, const std::string& chat_template);

// One model of /v1/models, and the list.
Json model_object(const ModelFacts& model, int64_t created, int64_t max_model_len);
Json model_list(const ModelFacts& model, int64_t created, int64_t max_model_len);

}  // namespace based
