#include "based/eval/request_dump.h"

#include "based/core/hash.h"
#include "based/eval/request_stub.h"
#include "based/eval/request_tokens.h"

namespace based {
namespace {

Json rolling_json(const Tokenizer& tokenizer, const EvalDocument& document, int64_t max_length) {
  const std::string& target = document.requests.front().continuation;
  const std::vector<int64_t> ids = encode_requests(tokenizer, document, max_length).front().continuation;
  const std::string page = document.fields.at("page").get<std::string>();
  Json windows = Json::array();
  double sum = 0;
  for (const RollingWindow& window : rolling_windows(static_cast<int64_t>(ids.size()), max_length)) {
    const StubScore score = stub_window(window_tokens(window, ids, prefix_token(tokenizer)));
    sum += score.log_likelihood;
    windows.push_back({{"context", window.context}, {"predict", window.predicted}, {"h", hex(score.hash)}});
  }
  return {{"doc", document.index},
          {"source", document.source},
          {"type", "loglikelihood_rolling"},
          {"page_bytes", page.size()},
          {"page_xxh64", hex(text_hash(page))},
          {"target_bytes", target.size()},
          {"target_xxh64", hex(text_hash(target))},
          {"tokens", ids.size()},
          {"ids_xxh64", hex(text_hash(id_bytes(ids)))},
          {"words", document.fields.at("words")},
          {"bytes", document.fields.at("bytes")},
          {"ll", sum},
          {"windows", windows},
          {"target", target},
          {"ids", ids}};
}

Json context_json(const std::string& text, const std::vector<int64_t>& ids) {
  return {{"text", text},
          {"ids", ids},
          {"bytes", text.size()},
          {"tokens", ids.size()},
          {"xxh64", hex(text_hash(text))},
          {"ids_xxh64", hex(text_hash(id_bytes(ids)))}};
}

Json request_json(const EvalDocument& document, const EvalRequest& request, const RequestTokens& tokens) {
  const std::string& context = document.contexts.at(request.context);
  Json json;
  if (request.kind == EvalRequest::Kind::generate) {
    const StubText text = stub_text(context, gold_text(document), stop_strings(request.until));
    json = {{"type", "generate_until"}, {"context", request.context}, {"until", request.until}, {"max_gen_toks", request.max_tokens},
            {"h", hex(text.hash)},      {"variant", text.variant},    {"raw", text.raw},        {"text", text.text}};
  } else {
    const StubScore score = stub_score(context, request.continuation);
    json = {{"type", "loglikelihood"},    {"context", request.context}, {"continuation", request.continuation},
            {"ids", tokens.continuation}, {"h", hex(score.hash)},       {"ll", score.log_likelihood},
            {"greedy", score.greedy}};
  }
  if (tokens.moved > 0) json["moved"] = tokens.moved;
  if (tokens.dropped > 0) json["dropped"] = tokens.dropped;
  return json;
}

}  // namespace

Json document_requests(const Tokenizer& tokenizer, const EvalDocument& document, int64_t max_length) {
  if (!document.requests.empty() && document.requests.front().kind == EvalRequest::Kind::rolling)
    return rolling_json(tokenizer, document, max_length);
  const std::vector<RequestTokens> tokens = encode_requests(tokenizer, document, max_length);
  Json json{{"doc", document.index}, {"source", document.source}};
  if (!document.few_shot.empty()) json["fewshot"] = document.few_shot;
  json["gold"] = document.gold;
  Json contexts = Json::array(), requests = Json::array();
  for (size_t context = 0; context < document.contexts.size(); ++context) {
    for (size_t i = 0; i < tokens.size(); ++i) {
      if (document.requests[i].context != context) continue;
      contexts.push_back(context_json(document.contexts[context], tokens[i].context));
      break;
    }
  }
  for (size_t i = 0; i < tokens.size(); ++i) requests.push_back(request_json(document, document.requests[i], tokens[i]));
  json["contexts"] = contexts;
  json["requests"] = requests;
  return json;
}

}  // namespace based
