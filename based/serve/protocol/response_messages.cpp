#include "based/serve/protocol/response_messages.h"

#include <utility>

#include "based/core/text.h"
#include "based/core/utf8.h"

namespace based {
namespace {

constexpr const char* kSealedContent = "reasoning.encrypted_content";
constexpr int64_t kMostMetadata = 16, kMostMetadataKey = 64, kMostMetadataValue = 512;  // members, and characters, as OpenAI has them

// The text of a message's content: a string, or a list of parts of type input_text.
std::string content_text(const Json& content, const std::string& path) {
  if (content.is_string()) return content.get<std::string>();
  if (!content.is_array()) throw ApiError::invalid(path, path + ": must be a string or a list of parts");
  std::string text;
  for (const Json& part : content) {
    const RequestFields fields(part, path + ".");
    if (const std::string type = fields.text("type", "input_text"); type != "input_text" && type != "text")
      throw ApiError::unsupported(path, path + ": parts of type " + in_quotes(type) + " are not supported, only input_text");
    text += fields.text("text");
  }
  return text;
}

void parse_items(const Json& items, ResponseRequest& out) {
  size_t next = 0;
  for (size_t i = 0; i < items.size(); ++i) {
    if (!items[i].is_object() || !items[i].contains("encrypted_content") || !items[i]["encrypted_content"].is_string()) continue;
    out.sealed = items[i]["encrypted_content"].get<std::string>();
    const std::string path = "input[" + std::to_string(i) + "].encrypted_content";
    if (out.sealed.empty()) throw ApiError::invalid(path, path + ": must not be empty");
    next = i + 1;
  }
  for (; next < items.size(); ++next) {
    const std::string path = "input[" + std::to_string(next) + "]";
    const RequestFields item(items[next], path + ".");
    if (const std::string type = item.text("type", "message"); type != "message")
      throw ApiError::unsupported(path, path + ": items of type " + in_quotes(type) + " are not supported, only messages");
    if (const std::string role = item.text("role"); role != "user")
      throw ApiError::unsupported(path, path + ": a message of role " + in_quotes(role) +
                                            " needs a chat template; continue a response by previous_response_id or encrypted_content");
    const Json* const content = item.find("content");
    if (content == nullptr) throw ApiError::invalid(path, path + ": has no content");
    out.text += content_text(*content, path + ".content");
  }
}

// Throws ApiError 400 for anything but a few short strings: metadata is stored and returned with the response.
void check_metadata(const RequestFields& fields, const Json& metadata) {
  if (!metadata.is_object() || static_cast<int64_t>(metadata.size()) > kMostMetadata)
    fields.fail("metadata", "must be an object of at most " + std::to_string(kMostMetadata) + " members");
  for (const auto& [key, value] : metadata.items()) {
    const bool fits =
        utf8_length(key) <= kMostMetadataKey && value.is_string() && utf8_length(value.get_ref<const std::string&>()) <= kMostMetadataValue;
    if (!fits)
      fields.fail("metadata", "keys have at most " + std::to_string(kMostMetadataKey) + " characters, and values are strings of at most " +
                                  std::to_string(kMostMetadataValue));
  }
}

// Fields of the Responses API, and of the other endpoints, that would change the result.
void reject_unsupported_response_fields(const RequestFields& fields) {
  // Each with a value that changes nothing.
  static const std::vector<std::pair<const char*, Json>> kOthers = {
      {"n", 1},
      {"best_of", 1},
      {"echo", false},
      {"logprobs", 0},
      {"prompt_logprobs", 0},
      {"max_tokens", Json()},
      {"max_completion_tokens", Json()},
      {"state_at", Json()},
  };
  for (const auto& [name, neutral] : kOthers)
    if (const Json* const value = fields.find(name); value != nullptr && *value != neutral && *value != Json(false))
      throw ApiError::unsupported(name, std::string(name) + ": belongs to other endpoints; a response has one text, of at most " +
                                            "max_output_tokens tokens, and the state at its end");
  for (const char* name : {"conversation", "prompt", "instructions", "max_tool_calls", "top_logprobs"})
    if (const Json* const value = fields.find(name); value != nullptr && *value != Json("") && *value != 0)
      throw ApiError::unsupported(name, std::string(name) + ": is not supported");
  if (fields.boolean("background", false)) throw ApiError::unsupported("background", "background: responses are made at once");
  if (fields.text("truncation", "disabled") != "disabled")
    throw ApiError::unsupported("truncation", "truncation: the input is never cut; only \"disabled\" is supported");
  if (const Json* const text = fields.find("text")) {
    const RequestFields inner(*text, "text.");
    if (const Json* const format = inner.find("format"); format != nullptr && RequestFields(*format, "text.format.").text("type") != "text")
      throw ApiError::unsupported("text.format", "text.format: only {\"type\": \"text\"} is supported; use guided_choice or guided_regex");
  }
}

}  // namespace

ResponseRequest parse_response_request(const Json& request, const RequestLimits& limits, const ModelFacts& model) {
  const RequestFields fields(request);
  check_model_name(fields, model);
  reject_unsupported_fields(fields);
  reject_unsupported_response_fields(fields);
  ResponseRequest out;
  out.generation = parse_generation_fields(fields, limits, model, "max_output_tokens", kDefaultResponseTokens, /*absent_store=*/true);
  if (!out.generation.states.empty())
    throw ApiError::unsupported("state", "state: a response continues previous_response_id; POST /v1/completions starts from a state");
  out.store = fields.boolean("store", true);
  out.store_is_set = fields.has("store");
  out.ttl_seconds = out.generation.store.ttl_seconds;
  out.generation.store = {};
  out.previous = fields.text("previous_response_id");
  for (const std::string& include : fields.texts("include", limits.stops)) {
    if (include != kSealedContent) throw ApiError::unsupported("include", "include: only " + std::string(kSealedContent) + " is supported");
    out.include_sealed = true;
  }
  if (const Json* const metadata = fields.find("metadata")) {
    check_metadata(fields, *metadata);
    out.metadata = *metadata;
  }
  if (const Json* const input = fields.find("input")) {
    if (input->is_array())
      parse_items(*input, out);
    else if (input->is_string())
      out.text = input->get<std::string>();
    else
      fields.fail("input", "must be a string or a list of items");
  }
  if (!out.sealed.empty() && !out.previous.empty())
    fields.fail("previous_response_id", "must not be given together with an item that has encrypted_content");
  return out;
}

Json ResponseObject::text_part() const {
  return {{"type", "output_text"}, {"text", text}, {"annotations", Json::array()}, {"logprobs", Json::array()}};
}

Json ResponseObject::message(const char* item_status) const {
  const bool open = std::string_view(item_status) == "in_progress";
  return {{"id", message_id},
          {"type", "message"},
          {"status", item_status},
          {"role", "assistant"},
          {"content", open ? Json::array() : Json::array({text_part()})}};
}

Json ResponseObject::sealed_item() const {
  return {{"id", sealed_id}, {"type", "reasoning"}, {"summary", Json::array()}, {"encrypted_content", sealed}};
}

Json ResponseObject::to_json() const {
  Json output = Json::array();
  if (has_text) output.push_back(message(status == "incomplete" ? "incomplete" : "completed"));
  if (!sealed.empty()) output.push_back(sealed_item());
  Json counts;
  if (usage)
    counts = {{"input_tokens", usage->prompt_tokens},
              {"input_tokens_details", {{"cached_tokens", usage->cached_tokens}}},
              {"output_tokens", usage->completion_tokens},
              {"output_tokens_details", {{"reasoning_tokens", 0}}},
              {"total_tokens", usage->prompt_tokens + usage->completion_tokens}};
  const auto or_null = [](const std::string& value) { return value.empty() ? Json() : Json(value); };
  return {{"id", id},
          {"object", "response"},
          {"created_at", created},
          {"status", status},
          {"background", false},
          {"error", nullptr},
          {"incomplete_details", incomplete_reason.empty() ? Json() : Json{{"reason", incomplete_reason}}},
          {"instructions", nullptr},
          {"max_output_tokens", request.generation.max_tokens},
          {"metadata", request.metadata},
          {"model", model},
          {"output", std::move(output)},
          {"parallel_tool_calls", false},
          {"previous_response_id", or_null(request.previous)},
          {"reasoning", {{"effort", nullptr}, {"summary", nullptr}}},
          {"store", request.store},
          {"temperature", request.generation.sampling.temperature},
          {"text", {{"format", {{"type", "text"}}}}},
          {"tool_choice", "none"},
          {"tools", Json::array()},
          {"top_p", request.generation.sampling.top_p},
          {"truncation", "disabled"},
          {"usage", std::move(counts)},
          {"user", nullptr},
          {"state", or_null(state)}};
}

std::string ResponseEvents::event(const char* type, const Json& members) {
  Json json = {{"type", type}, {"sequence_number", number_++}};
  json.update(members);
  return "event: " + std::string(type) + "\ndata: " + dump_json(json) + "\n\n";
}

std::string ResponseEvents::begin(const ResponseObject& response) {
  std::string out = event("response.created", {{"response", response.to_json()}});
  out += event("response.in_progress", {{"response", response.to_json()}});
  out += event("response.output_item.added", {{"output_index", 0}, {"item", response.message("in_progress")}});
  out += event("response.content_part.added",
               {{"item_id", response.message_id}, {"output_index", 0}, {"content_index", 0}, {"part", response.text_part()}});
  return out;
}

std::string ResponseEvents::delta(const ResponseObject& response, const std::string& text) {
  return event("response.output_text.delta",
               {{"item_id", response.message_id}, {"output_index", 0}, {"content_index", 0}, {"delta", text}, {"logprobs", Json::array()}});
}

std::string ResponseEvents::end(const ResponseObject& response) {
  const Json at = {{"item_id", response.message_id}, {"output_index", 0}, {"content_index", 0}};
  Json text = at, part = at;
  text["text"] = response.text;
  text["logprobs"] = Json::array();
  part["part"] = response.text_part();
  std::string out = event("response.output_text.done", text);
  out += event("response.content_part.done", part);
  const bool incomplete = response.status == "incomplete";
  out += event("response.output_item.done", {{"output_index", 0}, {"item", response.message(incomplete ? "incomplete" : "completed")}});
  if (!response.sealed.empty()) {
    out += event("response.output_item.added", {{"output_index", 1}, {"item", response.sealed_item()}});
    out += event("response.output_item.done", {{"output_index", 1}, {"item", response.sealed_item()}});
  }
  out += event(incomplete ? "response.incomplete" : "response.completed", {{"response", response.to_json()}});
  return out;
}

std::string ResponseEvents::error(const ApiError& error) {
  return event("error", {{"code", error.code().empty() ? error.type() : error.code()},
                         {"message", error.what()},
                         {"param", error.param().empty() ? Json() : Json(error.param())}});
}

}  // namespace based
