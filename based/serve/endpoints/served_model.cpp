#include "based/serve/endpoints/served_model.h"

#include <algorithm>
#include <utility>

#include "based/serve/protocol/identifiers.h"

namespace based {
namespace {

// A constraint as a function of the generated tokens. It remembers its place, so that a call after one more token follows that token only.
class AllowedByConstraint {
 public:
  explicit AllowedByConstraint(std::shared_ptr<Constraint> constraint) : constraint_(constraint), place_(std::move(constraint)) {}

  std::span<const uint64_t> operator()(std::span<const int64_t> generated) {
    if (generated.size() < followed_.size() || !std::equal(followed_.begin(), followed_.end(), generated.begin())) {
      place_ = ConstrainedSequence(constraint_);
      followed_.clear();
    }
    for (size_t i = followed_.size(); i < generated.size(); ++i) {
      place_.advance(static_cast<int32_t>(generated[i]));
      followed_.push_back(generated[i]);
    }
    const std::span<const uint64_t> mask = place_.mask();
    mask_.assign(mask.begin(), mask.end());  // another sequence's call may free the constraint's own copy
    return mask_;
  }

 private:
  std::shared_ptr<Constraint> constraint_;
  ConstrainedSequence place_;
  std::vector<int64_t> followed_;
  std::vector<uint64_t> mask_;
};

}  // namespace

ServedModel::ServedModel(const TextModel& model, ServedModelOptions options)
    : model_(model),
      options_(std::move(options)),
      facts_{options_.name, model.model->config().vocab_size},
      created_(unix_seconds()),
      trie_(std::make_shared<TokenTrie>(*model.tokenizer)) {
  check_request_limits(options_.limits);
  if (options_.limits.logprobs > kMostTopLogProbabilities)
    throw UsageError("the request limit logprobs must be at most " + std::to_string(kMostTopLogProbabilities) + ", got " +
                     std::to_string(options_.limits.logprobs));
  if (!options_.chat_template.empty()) chat_template_ = ChatTemplate::parse(options_.chat_template, options_.chat_template_file);
}

std::vector<int64_t> ServedModel::encode(const Prompt& prompt, int64_t before) const {
  std::vector<int64_t> ids;
  if (const auto* const text = std::get_if<std::string>(&prompt)) {
    const std::vector<int32_t> encoded = tokenizer().encode(*text, Specials::recognised);
    ids.assign(encoded.begin(), encoded.end());
  } else {
    ids = std::get<std::vector<int64_t>>(prompt);
  }
  const auto size = static_cast<int64_t>(ids.size());
  if (size > limits().prompt_tokens)
    throw ApiError::exceeds_context("prompt: has " + std::to_string(size) + " tokens, at most " + std::to_string(limits().prompt_tokens) +
                                    " are allowed");
  if (max_positions() > 0 && before + size > max_positions())
    throw ApiError::exceeds_context("prompt: the sequence has " + std::to_string(before + size) + " tokens, and the model has " +
                                    std::to_string(max_positions()) + " positions");
  return ids;
}

std::string ServedModel::decode(const std::vector<int64_t>& ids) const {
  std::vector<int32_t> narrow;
  narrow.reserve(ids.size());
  for (const int64_t id : ids) narrow.push_back(static_cast<int32_t>(id));
  return tokenizer().decode(narrow);
}

std::vector<GenerationPart> ServedModel::parts_of(const std::vector<Prompt>& prompts, const std::vector<std::string>& state_ids,
                                                  StateStore* states, const std::string& owner) const {
  if (!state_ids.empty() && states == nullptr) throw ApiError::unsupported("state", "state: this server stores no states");
  std::vector<GenerationPart> starts(std::max<size_t>(state_ids.size(), 1));
  for (size_t i = 0; i < state_ids.size(); ++i) {
    StoredState stored = states->get(owner, state_ids[i]);
    starts[i] = {{}, std::move(stored.sequence), state_ids[i], stored.info.uploaded};
  }
  std::vector<GenerationPart> parts;
  const size_t count = std::max(prompts.size(), starts.size());
  parts.reserve(count);
  for (size_t i = 0; i < count; ++i) {
    GenerationPart part = starts.size() == 1 ? starts[0] : starts[i];
    part.ids = encode(prompts.size() == 1 ? prompts[0] : prompts[i], part.start ? static_cast<int64_t>(part.start->ids.size()) : 0);
    parts.push_back(std::move(part));
  }
  return parts;
}

AllowedTokens ServedModel::allowed_tokens(const ConstraintFields& constraint) const {
  if (constraint.empty()) return {};
  try {
    return AllowedByConstraint(constraint.regex.empty() ? Constraint::from_choices(trie_, constraint.choices, constraint.field)
                                                        : Constraint::from_regex(trie_, constraint.regex, constraint.field));
  } catch (const UsageError& error) {
    throw ApiError::invalid(constraint.field, error.what());
  }
}

ReplyHead ServedModel::reply_head(const std::string& prefix) const {
  return {prefix + random_hex(12), unix_seconds(), name(), "fp_" + model_.hash.substr(0, 12)};
}

Json request_json(const HttpRequest& request) {
  try {
    return parse_json(request.body, "the request's body");
  } catch (const Error& error) {
    throw ApiError::invalid("", error.what());
  }
}

ScoredToken scored_token(const TokenScore& score) {
  ScoredToken token{score.id, true, score.log_probability, {}};
  token.top.reserve(score.top.size());
  for (const auto& [id, value] : score.top) token.top.emplace_back(id, value);
  return token;
}

}  // namespace based
