// The limits of one request. A request above a limit gets a 400 that names it. The body's size is a limit of the HTTP server
// (http/options.h).
#pragma once
#include <cstdint>

#include "based/core/config.h"

namespace based {

struct RequestLimits {
  int64_t batch = 1024;
  int64_t n = 1024;
  int64_t choices = 4096;
  int64_t stops = 64;
  int64_t stop_bytes = 1024;
  int64_t prompt_tokens = 131072;
  int64_t max_tokens = 65536;
  int64_t logprobs = 20;
  int64_t logit_bias = 1024;

  template <class Visitor>
  void visit(Visitor&& field) {
    field("batch", batch, "prompts of one request");
    field("n", n, "choices for one prompt");
    field("choices", choices, "choices of one request: its prompts times n");
    field("stops", stops, "stop strings of one request, and stop tokens");
    field("stop_bytes", stop_bytes, "bytes of a stop string");
    field("prompt_tokens", prompt_tokens, "tokens of one prompt");
    field("max_tokens", max_tokens, "largest max_tokens of a request");
    field("logprobs", logprobs, "most likely tokens that are reported at each position");
    field("logit_bias", logit_bias, "tokens with a logit_bias in one request");
  }
};

// Throws UsageError for limits below 1.
void check_request_limits(const RequestLimits& limits);

}  // namespace based
