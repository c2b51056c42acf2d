#include "based/serve/protocol/tokenizer_messages.h"

#include "based/serve/protocol/reply_text.h"
#include "based/serve/protocol/utf8_text.h"

namespace based {
namespace {

std::string length_or_null(int64_t tokens) { return tokens > 0 ? std::to_string(tokens) : "null"; }

}  // namespace

std::string tokenize_reply(const Json& request, const Tokenizer& tokenizer, const ModelFacts& model, int64_t max_model_len) {
  const RequestFields fields(request);
  check_model_name(fields, model);
  if (fields.has("messages")) throw ApiError::unsupported("messages", "messages: only \"prompt\" can be tokenized");
  if (!fields.has("prompt")) throw ApiError::invalid("prompt", "prompt: is missing; it must be a string");
  fields.boolean("add_special_tokens", false);
  const bool with_strings = fields.boolean("return_token_strs", false);
  const std::vector<int32_t> ids = tokenizer.encode(fields.text("prompt"), Specials::recognised);
  std::string tokens, strings;
  for (const int32_t id : ids) {
    tokens += (tokens.empty() ? "" : ",") + std::to_string(id);
    if (!with_strings) continue;
    if (!strings.empty()) strings += ',';
    append_json(token_text(tokenizer, id), strings);
  }
  return "{\"tokens\":[" + tokens + "],\"count\":" + std::to_string(ids.size()) + ",\"max_model_len\":" + length_or_null(max_model_len) +
         ",\"token_strs\":" + (with_strings ? "[" + strings + "]" : "null") + "}";
}

std::string detokenize_reply(const Json& request, const Tokenizer& tokenizer, const ModelFacts& model) {
  const RequestFields fields(request);
  check_model_name(fields, model);
  if (!fields.has("tokens")) throw ApiError::invalid("tokens", "tokens: is missing; it must be a list of token ids");
  std::string text;
  for (const int64_t id : fields.token_ids("tokens", INT64_MAX, model.vocab_size)) text += tokenizer.token_bytes(static_cast<int32_t>(id));
  std::string out = "{\"prompt\":";
  append_json(well_formed(text), out);
  return out + "}";
}

std::string tokenizer_info_reply(const Tokenizer& tokenizer, const std::string& chat_template) {
  Json end;
  if (const auto id = tokenizer.end_of_text()) end = well_formed(tokenizer.token_bytes(*id));
  Json info = Json::object();
  info["eos_token"] = end;
  info["bos_token"] = end;
  info["pad_token"] = Json();
  info["chat_template"] = chat_template.empty() ? Json() : Json(chat_template);
  return dump_json(info);
}

Json model_object(const ModelFacts& model, int64_t created, int64_t max_model_len) {
  Json object = Json::object();
  object["id"] = model.name;
  object["object"] = "model";
  object["created"] = created;
  object["owned_by"] = "based";
  object["max_model_len"] = max_model_len > 0 ? Json(max_model_len) : Json();
  object["vocab_size"] = model.vocab_size;
  return object;
}

Json model_list(const ModelFacts& model, int64_t created, int64_t max_model_len) {
  Json list = Json::object();
  list["object"] = "list";
  list["data"] = Json::array({model_object(model, created, max_model_len)});
  return list;
}

}  // namespace based
