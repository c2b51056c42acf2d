// The tokens of an evaluation's requests, and their cuts to a model's length, as lm-eval 0.4.13 makes them. Text that spells a special
// token is that token.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "based/eval/task.h"

namespace based {

// White space at the end of `text`, in characters and bytes. White space is what Python's str.isspace accepts.
struct TrailingSpace {
  int64_t characters = 0;
  size_t bytes = 0;
};
TrailingSpace trailing_space(std::string_view text);

struct RequestTokens {
  // The context's ids before any cut. White space at its end belongs to the continuation. An empty context is the end-of-text token.
  std::vector<int64_t> context;
  std::vector<int64_t> continuation;  // for a rolling request the whole text; empty for generation
  int64_t moved = 0;                  // white-space characters that went from the context to the continuation
  int64_t dropped = 0;                // tokens to be cut from the left of the context
};

// Throws Error if an empty context needs the end-of-text token and the tokenizer has none.
RequestTokens encode_pair(const Tokenizer& tokenizer, const std::string& context, const std::string& continuation);

// The tokens of each request of a document. A scored request reads at most `max_length` tokens, and predicts the token after the last of
// them: `dropped` is the excess. A generation leaves room for its new tokens.
std::vector<RequestTokens> encode_requests(const Tokenizer& tokenizer, const EvalDocument& document, int64_t max_length);

// A window of a rolling request: `predicted` tokens of the text from `first` on, after a context of `context` tokens that precede them.
struct RollingWindow {
  int64_t first = 0, predicted = 0, context = 0;

  bool operator==(const RollingWindow&) const = default;
  bool begins_text() const { return first == 0; }  // its context is the end-of-text token
};
// The first window predicts up to `max_length` tokens after the end-of-text token. Each later one predicts the next `max_length` tokens, or
// those that are left, and reads `max_length` tokens in all, or one more token than it predicts.
std::vector<RollingWindow> rolling_windows(int64_t tokens, int64_t max_length);
// The context and the predicted tokens of a window. `prefix`: the end-of-text token.
RequestTokens window_tokens(const RollingWindow& window, const std::vector<int64_t>& text, int64_t prefix);

// The id of <|endoftext|>; throws Error if the tokenizer has none.
int64_t prefix_token(const Tokenizer& tokenizer);

// The stop strings of a generation: those of the request, and <|endoftext|>.
std::vector<std::string> stop_strings(const std::vector<std::string>& until);
// The text before the first occurrence of any stop string.
std::string cut_at_stops(std::string text, const std::vector<std::string>& stops);

}  // namespace based
