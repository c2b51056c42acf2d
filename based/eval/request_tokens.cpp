#include "based/eval/request_tokens.h"

#include <algorithm>
#include <map>

#include "based/core/utf8.h"
#include "based/eval/tasks/python_text.h"

namespace based {
namespace {

constexpr const char* kEndOfText = "<|endoftext|>";

std::vector<int64_t> encode_recognised(const Tokenizer& tokenizer, std::string_view text) {
  const std::vector<int32_t> ids = tokenizer.encode(text, Specials::recognised);
  return {ids.begin(), ids.end()};
}

std::vector<int64_t> tail(const std::vector<int64_t>& ids, size_t first) {
  return {ids.begin() + static_cast<std::ptrdiff_t>(std::min(first, ids.size())), ids.end()};
}

// The context without its trailing space, encoded.
struct EncodedContext {
  std::vector<int64_t> ids;
  TrailingSpace space;
};

EncodedContext encode_context(const Tokenizer& tokenizer, std::string_view context) {
  const TrailingSpace space = trailing_space(context);
  return {encode_recognised(tokenizer, context.substr(0, context.size() - space.bytes)), space};
}

RequestTokens encode_after(const Tokenizer& tokenizer, const EncodedContext& encoded, const std::string& context,
                           const std::string& continuation) {
  RequestTokens tokens;
  if (context.empty()) {
    const int64_t prefix = prefix_token(tokenizer);
    tokens.context = {prefix};
    const std::vector<int64_t> whole = encode_recognised(tokenizer, continuation);
    tokens.continuation = tail(whole, !whole.empty() && whole.front() == prefix ? 1 : 0);
    return tokens;
  }
  tokens.context = encoded.ids;
  tokens.moved = encoded.space.characters;
  tokens.continuation = tail(encode_recognised(tokenizer, context + continuation), encoded.ids.size());
  return tokens;
}

}  // namespace

TrailingSpace trailing_space(std::string_view text) {
  TrailingSpace space;
  while (space.bytes < text.size()) {
    const size_t end = text.size() - space.bytes;
    size_t begin = end - 1;
    while (begin > 0 && end - begin < 4 && (static_cast<unsigned char>(text[begin]) & 0xc0U) == 0x80U) --begin;
    const Utf8Char last = utf8_at(text.data() + begin, text.data() + end);
    if (last.size != static_cast<int>(end - begin) || !is_python_space(last.code)) break;
    space.bytes += end - begin;
    ++space.characters;
  }
  return space;
}

int64_t prefix_token(const Tokenizer& tokenizer) {
  const auto end = tokenizer.end_of_text();
  if (!end) throw Error(std::string("the model's tokenizer has no ") + kEndOfText + ", with which an empty context begins");
  return *end;
}

RequestTokens encode_pair(const Tokenizer& tokenizer, const std::string& context, const std::string& continuation) {
  return encode_after(tokenizer, encode_context(tokenizer, context), context, continuation);
}

std::vector<RequestTokens> encode_requests(const Tokenizer& tokenizer, const EvalDocument& document, int64_t max_length) {
  std::map<size_t, EncodedContext> contexts;
  std::vector<RequestTokens> all;
  for (const EvalRequest& request : document.requests) {
    if (request.kind == EvalRequest::Kind::rolling) {
      all.push_back({{}, encode_recognised(tokenizer, request.continuation)});
      continue;
    }
    const std::string& context = document.contexts.at(request.context);
    if (request.kind == EvalRequest::Kind::generate) {
      RequestTokens tokens;
      tokens.context = context.empty() ? std::vector{prefix_token(tokenizer)} : encode_recognised(tokenizer, context);
      tokens.dropped = std::max<int64_t>(0, static_cast<int64_t>(tokens.context.size()) - (max_length - request.max_tokens));
      all.push_back(std::move(tokens));
      continue;
    }
    if (!contexts.contains(request.context)) contexts.emplace(request.context, encode_context(tokenizer, context));
    RequestTokens tokens = encode_after(tokenizer, contexts.at(request.context), context, request.continuation);
    const auto size = static_cast<int64_t>(tokens.context.size() + tokens.continuation.size());
    tokens.dropped = std::max<int64_t>(0, size - (max_length + 1));
    all.push_back(std::move(tokens));
  }
  return all;
}

std::vector<RollingWindow> rolling_windows(int64_t tokens, int64_t max_length) {
  std::vector<RollingWindow> windows;
  for (int64_t first = 0; first < tokens;) {
    const int64_t predicted = std::min(tokens - first, max_length);
    windows.push_back({first, predicted, first == 0 ? 1 : max_length - predicted + 1});
    first += predicted;
  }
  return windows;
}

RequestTokens window_tokens(const RollingWindow& window, const std::vector<int64_t>& text, int64_t prefix) {
  const auto first = text.begin() + window.first;
  RequestTokens tokens;
  tokens.context = window.begins_text() ? std::vector{prefix} : std::vector(first - window.context, first);
  tokens.continuation.assign(first, first + window.predicted);
  return tokens;
}

std::vector<std::string> stop_strings(const std::vector<std::string>& until) {
  std::vector<std::string> stops = until;
  if (std::find(stops.begin(), stops.end(), kEndOfText) == stops.end()) stops.emplace_back(kEndOfText);
  return stops;
}

std::string cut_at_stops(std::string text, const std::vector<std::string>& stops) {
  size_t first = text.size();
  for (const std::string& stop : stops)
    if (!stop.empty()) first = std::min(first, text.find(stop));
  text.resize(first);
  return text;
}

}  // namespace based
