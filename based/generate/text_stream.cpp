#include "based/generate/text_stream.h"

#include <algorithm>

#include "based/core/error.h"

namespace based {

std::vector<int64_t> encode_ids(const Tokenizer& tokenizer, std::string_view text) {
  const std::vector<int32_t> ids = tokenizer.encode(text);
  return {ids.begin(), ids.end()};
}

TextStream::TextStream(const Tokenizer& tokenizer, std::vector<std::string> stops) : decoder_(tokenizer), stops_(std::move(stops)) {
  for (const auto& stop : stops_)
    if (stop.empty()) throw UsageError("--stop must not be empty");
}

std::string TextStream::release(const std::string& text) {
  held_ += text;
  size_t first = std::string::npos;
  for (const auto& stop : stops_) first = std::min(first, held_.find(stop));
  if (first != std::string::npos) {
    stopped_ = true;
    std::string before = held_.substr(0, first);
    held_.clear();
    return before;
  }
  size_t keep = 0;  // length of the longest suffix of held_ that begins a stop string
  for (const auto& stop : stops_)
    for (size_t length = std::min(stop.size() - 1, held_.size()); length > keep; --length)
      if (held_.compare(held_.size() - length, length, stop, 0, length) == 0) keep = length;
  std::string certain = held_.substr(0, held_.size() - keep);
  held_.erase(0, certain.size());
  return certain;
}

std::string TextStream::push(int64_t id) { return stopped_ ? "" : release(decoder_.push(static_cast<int32_t>(id))); }

std::string TextStream::finish() {
  if (stopped_) return "";
  std::string rest = release(decoder_.flush());
  if (!stopped_) rest += held_;
  held_.clear();
  return rest;
}

}  // namespace based
