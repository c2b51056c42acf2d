// The fields that all requests for generated text share: completions, chats and responses.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "based/generate/sampler.h"
#include "based/serve/protocol/limits.h"
#include "based/serve/protocol/request_fields.h"

namespace based {

// The text must be one of `choices`, or match `regex`. At most one of the two is set.
struct ConstraintFields {
  std::string field;  // the request's field, for messages
  std::vector<std::string> choices;
  std::string regex;

  bool empty() const { return field.empty(); }
};

// "store", "state_at" and "state_ttl": the states that are kept after a request.
struct StoreFields {
  bool at_prompt = false, at_end = false;
  std::optional<int64_t> ttl_seconds;  // absent: the server's default

  bool any() const { return at_prompt || at_end; }
};

struct GenerationFields {
  SamplingOptions sampling;     // its seed is not set
  std::optional<int64_t> seed;  // absent: the server draws one for each prompt
  int64_t max_tokens = 0;
  std::vector<std::string> stops;    // none is empty
  std::vector<int64_t> stop_tokens;  // besides the end-of-text token
  bool ignore_end_of_text = false;   // the text does not end at the end-of-text token
  ConstraintFields constraint;
  bool stream = false, include_usage = false;
  std::vector<std::string> states;  // ids of states, from "state"
  bool states_are_list = false;
  StoreFields store;
};

// The properties of the model that the checks of requests need.
struct ModelFacts {
  std::string name;
  int64_t vocab_size = 0;
};

// Reads the shared fields. `max_tokens`: the name of the length limit; `absent_max_tokens` and `absent_store`: the defaults of the limit
// and of "store". Throws ApiError 400.
GenerationFields parse_generation_fields(const RequestFields& fields, const RequestLimits& limits, const ModelFacts& model,
                                         const char* max_tokens, int64_t absent_max_tokens, bool absent_store = false);

// The field logit_bias, {"50256": -100, …}, in ascending order of ids. Throws ApiError 400.
std::vector<std::pair<int64_t, double>> parse_logit_bias(const Json& value, const RequestLimits& limits, int64_t vocab_size);

// Throws ApiError 400 "unsupported" for a field that would change the result and that this server does not have. Values that change
// nothing, such as "suffix": "" or "length_penalty": 1, are accepted, and fields that no server knows are ignored.
void reject_unsupported_fields(const RequestFields& fields);

// Throws ApiError 404 if "model" names another model than this server's. Absent and empty names are accepted.
void check_model_name(const RequestFields& fields, const ModelFacts& model);

}  // namespace based
