#include "based/generate/text_generator.h"

#include <algorithm>

#include "based/core/profile.h"

namespace based {
namespace {

std::string reason(Finish finish) { return finish == Finish::stop ? "end_of_text" : finish_name(finish); }

}  // namespace

std::vector<int64_t> ids_of_text(const Tokenizer& tokenizer, const GeneratedText& text) {
  std::vector<int64_t> ids;
  size_t bytes = 0;
  for (const int64_t id : text.ids) {
    const size_t more = tokenizer.token_bytes(static_cast<int32_t>(id)).size();
    if (bytes + more > text.text.size()) break;
    ids.push_back(id);
    bytes += more;
  }
  const std::vector<int64_t> rest = encode_ids(tokenizer, std::string_view(text.text).substr(bytes));
  ids.insert(ids.end(), rest.begin(), rest.end());
  return ids;
}

int64_t TextGenerator::add(TextRequest request) {
  Text text{TextStream(tokenizer_, request.stops), {}};
  if (const auto end = tokenizer_.end_of_text()) request.options.stop_tokens.push_back(*end);
  int64_t sequence = 0;
  if (request.state) {
    std::vector<int64_t>& ids = request.state->ids;
    ids.insert(ids.end(), request.ids.begin(), request.ids.end());
    sequence = engine_.add(std::move(*request.state), request.options);
  } else {
    sequence = engine_.add(std::move(request.ids), request.options);
  }
  text.out.prompt_tokens = static_cast<int64_t>(engine_.text(sequence).size());
  texts_.emplace(sequence, std::move(text));
  return sequence;
}

std::string TextGenerator::text_of(Text& text, int64_t token) {
  const ProfileRange range(ProfileLevel::phases, "detokenize");
  return text.stream.push(token);
}

void TextGenerator::append_text(int64_t sequence, Text& text, const std::string& piece, const Piece& callback) {
  text.out.text += piece;
  if (callback && !piece.empty()) callback(sequence, piece);
}

void TextGenerator::step(const Piece& piece, const Ended& ended) {
  const std::vector<Engine::Output>& outputs = engine_.step();
  for (size_t i = 0; i < outputs.size(); ++i) {
    const Engine::Output& output = outputs[i];
    const auto found = texts_.find(output.sequence);
    if (found == texts_.end()) continue;  // it was not added here
    Text& text = found->second;
    if (output.token >= 0) {
      ++tokens_;
      text.out.ids.push_back(output.token);
      if (engine_.keeps_log_probabilities()) text.out.log_probabilities.push_back(output.log_probability);
      if (output.finish != Finish::stop) append_text(output.sequence, text, text_of(text, output.token), piece);
    }
    if (output.finish == Finish::none && !text.stream.stopped()) continue;
    if (output.finish == Finish::none) {
      // With drafts, the step may have more tokens, after the stop string.
      const auto is_later = [&](const Engine::Output& other) { return other.sequence == output.sequence; };
      engine_.end(output.sequence, std::count_if(outputs.begin() + static_cast<int64_t>(i) + 1, outputs.end(), is_later));
    }
    append_text(output.sequence, text, text.stream.finish(), piece);
    text.out.finish_reason = text.stream.stopped() ? "stop" : reason(output.finish);
    GeneratedText out = std::move(text.out);
    texts_.erase(found);
    ended(output.sequence, std::move(out));
  }
}

GeneratedText TextGenerator::break_off(int64_t sequence, const Piece& piece) {
  Text& text = texts_.at(sequence);
  engine_.end(sequence);
  append_text(sequence, text, text.stream.finish(), piece);
  text.out.finish_reason = "interrupted";
  GeneratedText out = std::move(text.out);
  texts_.erase(sequence);
  return out;
}

}  // namespace based
