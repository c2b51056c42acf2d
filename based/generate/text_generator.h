// Sequences of text through an engine: prompts in as ids, whole characters out, an end at a stop string or at the end-of-text token.
#pragma once
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "based/generate/engine.h"
#include "based/generate/text_stream.h"

namespace based {

struct TextRequest {
  std::vector<int64_t> ids;              // of the prompt
  std::optional<SequenceState> state{};  // the prompt's ids follow its text
  SequenceOptions options{};             // the tokenizer's end of text is added to its stop tokens
  std::vector<std::string> stops{};      // the text ends before one of these
};

struct GeneratedText {
  std::string text;
  std::vector<int64_t> ids;              // drawn ones, the one that ended it included
  std::vector<float> log_probabilities;  // of each; empty where the engine keeps none
  int64_t prompt_tokens = 0;             // of all that was there before, a state's included
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
  int64_t tokens() const { return tokens_; }  // drawn, of all sequences
  // Of a sequence that has not ended.
  int64_t drawn(int64_t sequence) const { return static_cast<int64_t>(texts_.at(sequence).out.ids.size()); }

  // One step of the engine. `piece` is told text as soon as it is certain, `ended` what came out; the sequence is then the engine's to keep
  // or remove.
  using Piece = std::function<void(int64_t sequence, const std::string& text)>;
  using Ended = std::function<void(int64_t sequence, GeneratedText text)>;
  void step(const Piece& piece, const Ended& ended);
  // What a sequence has so far; it is ended in the engine, and forgotten here.
  GeneratedText break_off(int64_t sequence, const Piece& piece);

 private:
  struct Text {
    TextStream stream;
    GeneratedText out;
  };
  void give(int64_t sequence, Text& text, const std::string& piece, const Piece& to);

  Engine& engine_;
  const Tokenizer& tokenizer_;
  std::map<int64_t, Text> texts_;
  int64_t tokens_ = 0;
};

}  // namespace based
