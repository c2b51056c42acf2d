// The model of a server as its endpoints see it: prompts become tokens, and fields of requests become options of jobs.
#pragma once
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "based/generate/text_model.h"
#include "based/serve/constraints/constraint.h"
#include "based/serve/endpoints/http_reply.h"
#include "based/serve/protocol/completion_request.h"
#include "based/serve/templates/chat_template.h"

namespace based {

struct ServedModelOptions {
  std::string name;                     // in replies, and the only one that requests may name
  std::string chat_template = {};       // the content of a template file; empty: the model has no chats
  std::string chat_template_file = {};  // its name, for messages
  RequestLimits limits = {};
};

class ServedModel {
 public:
  // `model` must outlive this. Throws UsageError for limits out of range, and Error for a template that cannot be parsed.
  ServedModel(const TextModel& model, ServedModelOptions options);

  const Tokenizer& tokenizer() const { return *model_.tokenizer; }
  const ModelFacts& facts() const { return facts_; }
  const RequestLimits& limits() const { return options_.limits; }
  const std::string& name() const { return options_.name; }
  int64_t max_positions() const { return model_.model->config().max_positions; }  // 0: no limit
  int64_t created() const { return created_; }                                    // seconds since 1970
  const std::string& chat_template_source() const { return options_.chat_template; }
  const ChatTemplate* chat_template() const { return chat_template_ ? &*chat_template_ : nullptr; }

  // The tokens of a prompt. Text that spells a special token is that token; nothing is added. Throws ApiError 400 for prompts that are too
  // long for the limits or for the model's positions after `before` earlier tokens.
  std::vector<int64_t> encode(const Prompt& prompt, int64_t before = 0) const;
  std::string decode(const std::vector<int64_t>& ids) const;  // bytes, not always valid UTF-8
  // The parts of a request, with the stored states that they continue. `states` may be null if the server stores none. Throws ApiError.
  std::vector<GenerationPart> parts_of(const std::vector<Prompt>& prompts, const std::vector<std::string>& state_ids, StateStore* states,
                                       const std::string& owner) const;
  // The restriction of a request, or an empty function. Throws ApiError 400.
  AllowedTokens allowed_tokens(const ConstraintFields& constraint) const;
  // `prefix`: of the id, such as "cmpl-". The rest of the id is random.
  ReplyHead reply_head(const std::string& prefix) const;

 private:
  const TextModel& model_;
  ServedModelOptions options_;
  ModelFacts facts_;
  int64_t created_ = 0;
  std::shared_ptr<const TokenTrie> trie_;
  std::optional<ChatTemplate> chat_template_;
};

// The JSON of a request's body. Throws ApiError 400.
Json request_json(const HttpRequest& request);

// A TokenScore of the service as a token of a reply.
ScoredToken scored_token(const TokenScore& score);

}  // namespace based
