// Generates text by an engine. Prompts are ids, results are whole characters, and a sequence ends at a stop string or the end-of-text
// token.
#pragma once
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "based/generate/engine.h"
#include "based/generate/text_stream.h"

namespace based {

struct TextRequest {
  std::vector<int64_t> ids;              // the prompt
  std::optional<SequenceState> state{};  // if set, the prompt's ids are appended to this sequence
  SequenceOptions options{};             // the tokenizer's end of text is added to its stop tokens
  std::vector<std::string> stops{};      // the text ends before one of these
};

struct GeneratedText {
  std::string text;
  std::vector<int64_t> ids;              // sampled tokens, including the one that ended the sequence
  std::vector<float> log_probabilities;  // one for each id; empty if the engine keeps none
  int64_t prompt_tokens = 0;             // tokens before the first sampled one, including those of a restored state
  std::string finish_reason = "length";  // length, end_of_text, stop, cache_full, positions, not_finite
};

// The ids of the returned text, without those of a stop string or of the end-of-text token after it. If a stop string begins within a
// token, the part of the token before it is encoded anew.
std::vector<int64_t> ids_of_text(const Tokenizer& tokenizer, const GeneratedText& text);

class TextGenerator {
 public:
  TextGenerator(Engine& engine, const Tokenizer& tokenizer) : engine_(engine), tokenizer_(tokenizer) {}

  // The engine's number of the sequence. Throws what Engine::add throws, and UsageError for an empty stop string.
  int64_t add(TextRequest request);
  bool idle() const { return texts_.empty(); }
  size_t size() const { return texts_.size(); }
  int64_t tokens() const { return tokens_; }  // sampled, of all sequences
  // Tokens that a sequence has sampled so far; the sequence must not have ended.
  int64_t drawn(int64_t sequence) const { return static_cast<int64_t>(texts_.at(sequence).out.ids.size()); }

  // One step of the engine. Calls `piece` with text as soon as later tokens cannot change it, and `ended` with the result of a sequence
  // that has ended. The engine keeps that sequence until the caller removes it.
  using Piece = std::function<void(int64_t sequence, const std::string& text)>;
  using Ended = std::function<void(int64_t sequence, GeneratedText text)>;
  void step(const Piece& piece, const Ended& ended);
  // Ends a sequence in the engine and returns its result so far. The generator does not know the sequence afterwards.
  GeneratedText break_off(int64_t sequence, const Piece& piece);

 private:
  struct Text {
    TextStream stream;
    GeneratedText out;
  };
  static std::string text_of(Text& text, int64_t token);  // the text that this token completes
  void append_text(int64_t sequence, Text& text, const std::string& piece, const Piece& callback);

  Engine& engine_;
  const Tokenizer& tokenizer_;
  std::map<int64_t, Text> texts_;
  int64_t tokens_ = 0;
};

}  // namespace based
