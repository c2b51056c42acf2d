#include "based/eval/request_stub.h"

#include "based/core/hash.h"
#include "based/core/utf8.h"

namespace based {
namespace {

StubScore score_of(const std::string& bytes) {
  const uint64_t hash = text_hash(bytes);
  return {hash, -static_cast<double>(hash % 1000003) / 10007.0, (hash >> 20) % 7 == 0};
}

std::string zero_separated(const std::string& before, const std::string& after) { return before + std::string(1, '\0') + after; }

std::string without_last_character(std::string text) {
  size_t end = text.size();
  while (end > 0 && (static_cast<unsigned char>(text[end - 1]) & 0xc0U) == 0x80U) --end;
  text.resize(end > 0 ? end - 1 : 0);
  return text;
}

std::string in_ascii_capitals(std::string text) {
  for (char& each : text)
    if (each >= 'a' && each <= 'z') each = static_cast<char>(each - 'a' + 'A');
  return text;
}

}  // namespace

uint64_t text_hash(const std::string& text) { return xxh64(std::as_bytes(std::span(text))); }

std::string id_bytes(const std::vector<int64_t>& ids) {
  std::string bytes;
  for (const int64_t id : ids)
    for (int shift = 0; shift < 32; shift += 8) bytes.push_back(static_cast<char>(static_cast<uint64_t>(id) >> shift & 0xffU));
  return bytes;
}

StubScore stub_score(const std::string& context, const std::string& continuation) {
  return score_of(zero_separated(context, continuation));
}

StubScore stub_window(const RequestTokens& window) {
  return score_of(id_bytes(window.context) + std::string(4, '\xff') + id_bytes(window.continuation));
}

StubText stub_text(const std::string& context, const std::string& gold, const std::vector<std::string>& stops) {
  StubText text;
  text.hash = text_hash(zero_separated(context, gold));
  text.variant = static_cast<int>(text.hash % 4);
  switch (text.variant) {
    case 0: text.raw = " " + gold + "."; break;
    case 1: text.raw = in_ascii_capitals(" " + gold); break;
    case 2: text.raw = " no answer"; break;
    default: text.raw = " " + without_last_character(gold); break;
  }
  text.raw += "\nThe value is " + gold + ".";
  text.text = cut_at_stops(text.raw, stops);
  return text;
}

std::string gold_text(const EvalDocument& document) {
  const Json& gold = document.gold;
  if (gold.is_string()) return gold.get<std::string>();
  if (gold.is_array() && !gold.empty() && gold.front().is_string()) return gold.front().get<std::string>();
  throw Error(document.place + ": the document has no expected text, which the stub model's generation repeats");
}

std::vector<std::vector<EvalAnswer>> StubModel::answer(std::span<const EvalDocument> documents, const Progress& progress) {
  std::vector<std::vector<EvalAnswer>> answers;
  for (const EvalDocument& document : documents) {
    std::vector<EvalAnswer>& list = answers.emplace_back();
    for (const EvalRequest& request : document.requests) {
      EvalAnswer answer;
      if (request.kind == EvalRequest::Kind::rolling) {
        const std::vector<int32_t> ids = tokenizer_->encode(request.continuation, Specials::recognised);
        const std::vector<int64_t> text(ids.begin(), ids.end());
        for (const RollingWindow& window : rolling_windows(static_cast<int64_t>(text.size()), max_length_))
          answer.log_likelihood += stub_window(window_tokens(window, text, prefix_token(*tokenizer_))).log_likelihood;
      } else if (request.kind == EvalRequest::Kind::generate) {
        answer.text = stub_text(document.contexts.at(request.context), gold_text(document), stop_strings(request.until)).text;
      } else {
        const StubScore score = stub_score(document.contexts.at(request.context), request.continuation);
        answer.log_likelihood = score.log_likelihood;
        answer.greedy = score.greedy;
      }
      list.push_back(std::move(answer));
    }
  }
  if (progress && !progress(0)) return {};
  return answers;
}

Json StubModel::description() const { return {{"model", "stub"}, {"tokenizer", hex(tokenizer_->hash())}, {"max_length", max_length_}}; }

}  // namespace based
