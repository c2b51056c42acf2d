#include "based/generate/session.h"

#include "based/models/finite.h"

namespace based {
namespace {

EngineOptions one_slot(EngineOptions options) {
  if (options.drafts.drafter) throw UsageError("a session returns one token at a time and takes no drafts");
  options.slots = 1;
  return options;
}

const char* why_not(Finish finish) {
  switch (finish) {
    case Finish::not_finite: return kLogitsNotFinite;
    case Finish::positions: return "the text has as many tokens as the model has positions (max_positions)";
    case Finish::cache_full: return "the text has as many tokens as the cache has room for";
    default: return "the text has ended";
  }
}

}  // namespace

Session::Session(LanguageModel& model, EngineOptions engine) : model_(model), engine_(model, one_slot(engine)) {}

const std::vector<int64_t>& Session::ids() const {
  static const std::vector<int64_t> none;
  return sequence_ < 0 ? none : engine_.text(sequence_);
}

void Session::append(const std::vector<int64_t>& ids) {
  if (ids.empty()) return;
  if (sequence_ < 0)
    sequence_ = engine_.add(ids, {.keep_state = true});
  else
    engine_.extend(sequence_, ids);
}

int64_t Session::next(const SamplingOptions& options) {
  if (sequence_ < 0) throw Error("generation needs at least one token of prompt");
  if (const Finish ended = engine_.finish(sequence_); ended != Finish::none) throw Error(why_not(ended));
  engine_.set_sampling(sequence_, options);
  while (true)  // a long prompt is read in several steps
    for (const Engine::Output& output : engine_.step()) {
      if (output.token < 0) throw Error(why_not(output.finish));
      return output.token;
    }
}

void Session::read(const std::function<void(int64_t)>& progress) {
  const int64_t before = engine_.tokens_read();
  engine_.read([&] {
    if (progress) progress(engine_.tokens_read() - before);
  });
}

void Session::save(const std::string& path, const std::string& model_hash) {
  if (sequence_ < 0) throw Error(path + ": there is no text whose state could be saved");
  read();
  const SequenceState sequence = engine_.snapshot(sequence_);
  require_finite_logits(model_, sequence);
  save_sequence(path, sequence, model_hash);
}

void Session::load(const std::string& path, const std::string& model_hash) {
  SequenceState loaded = load_sequence(path, model_, model_hash);
  const int64_t sequence = engine_.add(std::move(loaded), {.keep_state = true});
  if (sequence_ >= 0) engine_.remove(sequence_);
  sequence_ = sequence;
}

}  // namespace based
