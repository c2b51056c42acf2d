// A model that answers by hashes of the requests, so that metrics can be compared with those of another harness without a model. XXH64 with
// seed 0 everywhere.
#pragma once
#include <memory>
#include <string>

#include "based/eval/eval_run.h"
#include "based/eval/request_tokens.h"

namespace based {

struct StubScore {
  uint64_t hash = 0;
  double log_likelihood = 0;  // −(hash mod 1000003) / 10007
  bool greedy = false;        // (hash >> 20) mod 7 == 0
};
// The hash is that of the context, a zero byte and the continuation.
StubScore stub_score(const std::string& context, const std::string& continuation);
// The hash is that of the context's ids, 0xffffffff and the predicted ids, little-endian, 32 bits each.
StubScore stub_window(const RequestTokens& window);

struct StubText {
  uint64_t hash = 0;  // XXH64 of the context, a zero byte and `gold`
  int variant = 0;    // hash mod 4: the gold text, the same in capitals, " no answer", or the gold text without its last character
  std::string raw;    // with a sentence after a line break
  std::string text;   // `raw` before the first stop string
};
StubText stub_text(const std::string& context, const std::string& gold, const std::vector<std::string>& stops);
// The expected text of a document that generates: `gold`, or the first of a list. Throws Error naming the document if there is none.
std::string gold_text(const EvalDocument& document);

// Answers as above. The tokenizer only determines rolling windows.
class StubModel final : public EvalModel {
 public:
  StubModel(std::unique_ptr<Tokenizer> tokenizer, int64_t max_length) : tokenizer_(std::move(tokenizer)), max_length_(max_length) {}

  const Tokenizer& tokenizer() const override { return *tokenizer_; }
  int64_t max_length() const override { return max_length_; }
  std::vector<std::vector<EvalAnswer>> answer(std::span<const EvalDocument> documents, const Progress& progress) override;
  Json description() const override;
  uint64_t block_bytes() const override { return uint64_t{1} << 24; }

 private:
  std::unique_ptr<Tokenizer> tokenizer_;
  int64_t max_length_;
};

std::string id_bytes(const std::vector<int64_t>& ids);  // little-endian, 32 bits each
uint64_t text_hash(const std::string& text);

}  // namespace based
