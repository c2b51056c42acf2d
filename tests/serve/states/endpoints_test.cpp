#include "based/serve/states/endpoints.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/serve/endpoints/recorded_reply.h"

namespace based {
namespace endpoints_test {

using ::testing::HasSubstr;

// The routes of states and responses, called as the HTTP server calls them.
class StateServer : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    server_ = std::make_unique<ServerWithoutNetwork>();
    seal_ = std::make_unique<StateSeal>();
    router_ = std::make_unique<HttpRouter>();
    const StateContext context{server_->context(), server_->text_model(), *seal_};
    add_completion_routes(*router_, context.generation);
    add_state_routes(*router_, context);
    add_response_routes(*router_, context);
  }
  static void TearDownTestSuite() { router_.reset(), server_.reset(), seal_.reset(); }

  static std::shared_ptr<RecordedReply> call(const std::string& method, const std::string& path, const std::string& body = "",
                                             const std::string& owner = "a", const std::string& query = "") {
    auto reply = std::make_shared<RecordedReply>();
    HttpRequest request;
    request.method = method;
    request.path = path;
    request.query = query;
    request.body = body;
    request.owner = owner;
    request.id = "req_1";
    const HttpRouter::Match match = router_->find(method, path);
    request.captured = match.captured;
    try {
      if (match.handler == nullptr) throw ApiError::not_found("", "no such path");
      (*match.handler)(request, reply);
    } catch (const ApiError& error) {
      reply_error(*reply, error);
    }
    EXPECT_TRUE(reply->wait());
    return reply;
  }
  static Json ok(const std::string& method, const std::string& path, const std::string& body = "", const std::string& query = "") {
    const auto reply = call(method, path, body, "a", query);
    EXPECT_EQ(reply->status(), 200) << reply->body();
    return reply->json();
  }
  // The text after a prompt, by the most likely tokens.
  static std::string text_after(const std::string& members) {
    return ok("POST", "/v1/completions",
              "{" + members + R"(, "temperature": 0, "max_tokens": 8, "logit_bias": {"256": -100}})")["choices"][0]["text"];
  }
  static std::string in(const Json& value) { return dump_json(value); }

  static std::unique_ptr<ServerWithoutNetwork> server_;
  static std::unique_ptr<StateSeal> seal_;
  static std::unique_ptr<HttpRouter> router_;
};
std::unique_ptr<ServerWithoutNetwork> StateServer::server_;
std::unique_ptr<StateSeal> StateServer::seal_;
std::unique_ptr<HttpRouter> StateServer::router_;

TEST_F(StateServer, MakesContinuesListsAndRemovesStates) {
  const Json made = ok("POST", "/v1/states", R"({"prompt": "The document. ", "label": "document", "ttl": 1000})");
  const std::string id = made["id"];
  EXPECT_EQ(made["position"], 14);
  EXPECT_EQ(made["label"], "document");
  EXPECT_EQ(made["expires"].get<int64_t>() - made["created"].get<int64_t>(), 1000);
  EXPECT_EQ(made["usage"]["prompt_tokens"], 14);
  EXPECT_EQ(text_after(R"("state": ")" + id + R"(", "prompt": "A question?")"), text_after(R"("prompt": "The document. A question?")"));
  const Json longer = ok("POST", "/v1/states", R"({"state": ")" + id + R"(", "prompt": "More."})");
  EXPECT_EQ(longer["parent"], id);
  EXPECT_EQ(longer["position"], 19);

  const Json all = ok("GET", "/v1/states");
  EXPECT_EQ(all["data"].size(), 2u);
  EXPECT_EQ(all["data"][0]["id"], id);
  EXPECT_EQ(all["has_more"], false);
  const Json page = ok("GET", "/v1/states", "", "limit=1");
  EXPECT_EQ(page["data"].size(), 1u);
  EXPECT_EQ(page["has_more"], true);
  const Json rest = ok("GET", "/v1/states", "", "limit=1&after=" + id);
  EXPECT_EQ(rest["data"][0]["id"], longer["id"]);
  EXPECT_EQ(rest["has_more"], false);
  EXPECT_EQ(call("GET", "/v1/states", "", "a", "limit=0")->status(), 400);

  EXPECT_EQ(ok("GET", "/v1/states/" + id)["label"], "document");
  for (const char* method : {"GET", "DELETE"}) EXPECT_EQ(call(method, "/v1/states/" + id, "", "b")->status(), 404);
  EXPECT_EQ(call("GET", "/v1/states/" + id + "/content", "", "b")->status(), 404);
  EXPECT_EQ(call("POST", "/v1/states", R"({"state": ")" + id + R"(", "prompt": "x"})", "b")->status(), 404);
  EXPECT_EQ(ok("DELETE", "/v1/states/" + id)["deleted"], true);
  EXPECT_EQ(call("GET", "/v1/states/" + id)->status(), 404);
  ok("DELETE", "/v1/states/" + longer["id"].get<std::string>());
}

TEST_F(StateServer, AcceptsItsOwnFilesAndRefusesOthers) {
  const std::string id = ok("POST", "/v1/states", R"({"prompt": "The document. "})")["id"];
  const auto content = call("GET", "/v1/states/" + id + "/content");
  EXPECT_EQ(content->type(), "application/octet-stream");
  EXPECT_EQ(content->body().substr(0, 8), "BASEDST1");
  const Json uploaded = ok("PUT", "/v1/states", content->body(), "label=copy");
  const std::string copy = uploaded["id"];
  EXPECT_EQ(uploaded["label"], "copy");
  EXPECT_NE(copy, id);
  EXPECT_EQ(uploaded["ids_hash"], ok("GET", "/v1/states/" + id)["ids_hash"]);
  EXPECT_EQ(call("GET", "/v1/states/" + copy + "/content")->body(), content->body());
  EXPECT_EQ(text_after(R"("state": ")" + copy + R"(", "prompt": "x")"), text_after(R"("prompt": "The document. x")"));
  EXPECT_EQ(call("PUT", "/v1/states", content->body().substr(1))->status(), 400);
  EXPECT_EQ(call("PUT", "/v1/states", "")->status(), 400);
  for (const char* body : {R"({})", R"({"prompt": ""})", R"({"prompt": ["a", "b"]})", R"({"prompt": "a", "ttl": -1})", R"([])"})
    EXPECT_EQ(call("POST", "/v1/states", body)->status(), 400) << body;
  for (const std::string& state : {id, copy}) ok("DELETE", "/v1/states/" + state);
}

constexpr const char* kShort = R"("temperature": 0, "max_output_tokens": 8, "logit_bias": {"256": -100})";

std::string output_text(const Json& response) { return response["output"][0]["content"][0]["text"]; }

TEST_F(StateServer, ContinuesResponses) {
  const Json first = ok("POST", "/v1/responses", std::string(R"({"input": "Hello, ", )") + kShort + "}");
  const std::string id = first["id"];
  EXPECT_EQ(id.substr(0, 5), "resp_");
  EXPECT_EQ(first["object"], "response");
  EXPECT_EQ(first["status"], "incomplete");
  EXPECT_EQ(first["incomplete_details"]["reason"], "max_output_tokens");
  EXPECT_EQ(first["usage"]["input_tokens"], 7);
  EXPECT_EQ(first["usage"]["output_tokens"], 8);
  EXPECT_EQ(first["state"].get<std::string>().substr(3), id.substr(5)) << "a response is its end state";
  EXPECT_EQ(output_text(first), text_after(R"("prompt": "Hello, ")"));

  const std::string next = std::string(R"({"input": [{"role": "user", "content": [{"type": "input_text", "text": "and"}]}], )") + kShort +
                           R"(, "previous_response_id": ")" + id + "\"}";
  const Json second = ok("POST", "/v1/responses", next), branch = ok("POST", "/v1/responses", next);
  EXPECT_EQ(second["previous_response_id"], id);
  EXPECT_NE(second["id"], branch["id"]);
  EXPECT_EQ(output_text(second), output_text(branch)) << "a branch does not change its parent";
  EXPECT_EQ(ok("GET", "/v1/states/" + second["state"].get<std::string>())["parent"], first["state"]);

  EXPECT_EQ(ok("GET", "/v1/responses/" + id), first);
  EXPECT_EQ(call("GET", "/v1/responses/" + id, "", "b")->status(), 404);
  EXPECT_EQ(call("POST", "/v1/responses", next, "b")->status(), 404);
  EXPECT_EQ(ok("DELETE", "/v1/responses/" + id)["deleted"], true);
  EXPECT_EQ(call("GET", "/v1/responses/" + id)->status(), 404);
  EXPECT_EQ(call("POST", "/v1/responses", next)->status(), 404);
  for (const Json& response : {second, branch}) ok("DELETE", "/v1/responses/" + response["id"].get<std::string>());
  EXPECT_TRUE(ok("GET", "/v1/states")["data"].empty());

  const std::string state = ok("POST", "/v1/states", R"({"prompt": "x"})")["id"];
  EXPECT_EQ(call("GET", "/v1/responses/resp_" + state.substr(3))->status(), 404) << "a state alone is no response";
  ok("DELETE", "/v1/states/" + state);
}

TEST_F(StateServer, ContinuesSealedStatesAndKeepsNothing) {
  const std::string sealed = R"("store": false, "include": ["reasoning.encrypted_content"])";
  const Json first = ok("POST", "/v1/responses", std::string(R"({"input": "Hello, ", )") + kShort + ", " + sealed + "}");
  EXPECT_TRUE(first["state"].is_null());
  EXPECT_TRUE(ok("GET", "/v1/states")["data"].empty());
  EXPECT_EQ(call("GET", "/v1/responses/" + first["id"].get<std::string>())->status(), 404);
  // As client libraries do: the input, all items of the output, and the new message.
  Json items = Json::array({Json{{"role", "user"}, {"content", "Hello, "}}});
  for (const Json& item : first["output"]) items.push_back(item);
  items.push_back({{"role", "user"}, {"content", "and"}});
  const auto body = [&] { return "{\"input\": " + in(items) + ", " + kShort + ", " + sealed + "}"; };
  const Json second = ok("POST", "/v1/responses", body());
  EXPECT_EQ(second["usage"]["input_tokens"], 7 + 8 + 3);
  const Json stored = ok("POST", "/v1/responses", std::string(R"({"input": "Hello, ", )") + kShort + "}");
  const Json other =
      ok("POST", "/v1/responses",
         std::string(R"({"input": "and", )") + kShort + R"(, "store": false, "previous_response_id": )" + in(stored["id"]) + "}");
  EXPECT_EQ(output_text(second), output_text(other));
  ok("DELETE", "/v1/responses/" + stored["id"].get<std::string>());

  EXPECT_EQ(call("POST", "/v1/responses", body(), "b")->status(), 400) << "sealed for another owner";
  std::string& content = items[2]["encrypted_content"].get_ref<std::string&>();
  content[content.size() / 2] = content[content.size() / 2] == 'A' ? 'B' : 'A';
  const auto changed = call("POST", "/v1/responses", body());
  EXPECT_EQ(changed->status(), 400);
  EXPECT_EQ(changed->json()["error"]["param"], "input");
}

TEST_F(StateServer, StreamsTheEventsOfResponses) {
  const std::string request = std::string(R"({"input": "Hello, ", "stream": true, )") + kShort + "}";
  const auto reply = call("POST", "/v1/responses", request);
  EXPECT_EQ(reply->type(), "text/event-stream");
  std::vector<std::string> types;
  std::string text;
  Json last;
  for (size_t at = 0; at < reply->body().size();) {
    const size_t end = reply->body().find("\n\n", at), line = reply->body().find('\n', at);
    ASSERT_NE(end, std::string::npos);
    last = parse_json(reply->body().substr(line + 7, end - line - 7), "event");
    EXPECT_EQ(reply->body().substr(at, line - at), "event: " + last["type"].get<std::string>());
    EXPECT_EQ(last["sequence_number"], types.size());
    types.push_back(last["type"]);
    if (types.back() == "response.output_text.delta") text += last["delta"].get<std::string>();
    at = end + 2;
  }
  std::erase(types, "response.output_text.delta");
  EXPECT_EQ(types, (std::vector<std::string>{"response.created", "response.in_progress", "response.output_item.added",
                                             "response.content_part.added", "response.output_text.done", "response.content_part.done",
                                             "response.output_item.done", "response.incomplete"}));
  EXPECT_EQ(output_text(last["response"]), text);
  EXPECT_EQ(ok("GET", "/v1/responses/" + last["response"]["id"].get<std::string>()), last["response"]);
  ok("DELETE", "/v1/responses/" + last["response"]["id"].get<std::string>());
}

TEST_F(StateServer, RefusesResponsesThatItCannotMake) {
  for (const char* member : {R"("input": "")",
                             R"("input": 3)",
                             R"("input": [{"role": "assistant", "content": "x"}])",
                             R"("input": [{"role": "user", "content": [{"type": "input_image"}]}])",
                             R"("input": "x", "instructions": "y")",
                             R"("input": "x", "tools": [{"type": "web_search"}])",
                             R"("input": "x", "background": true)",
                             R"("input": "x", "truncation": "auto")",
                             R"("input": "x", "include": ["file_search_call.results"])",
                             R"("input": "x", "text": {"format": {"type": "json_schema"}})",
                             R"("input": "x", "state": "st_1")",
                             R"("input": "x", "n": 2)",
                             R"("input": "x", "logprobs": 2)",
                             R"("input": "x", "echo": true)",
                             R"("input": "x", "max_tokens": 5)",
                             R"("input": "x", "state_at": ["prompt"])",
                             R"("input": "x", "store": false, "state_ttl": 5)",
                             R"("input": "x", "metadata": {"a": [1]})",
                             R"("input": "x", "metadata": {"a": null})",
                             R"("input": [{"type": "reasoning", "encrypted_content": ""}, {"role": "user", "content": "x"}])"}) {
    const auto reply = call("POST", "/v1/responses", "{" + std::string(member) + "}");
    EXPECT_EQ(reply->status(), 400) << member;
    EXPECT_FALSE(reply->json()["error"]["param"].is_null()) << member;
  }
  // Neutral values, a time to live where "store" is absent, and the longest metadata.
  const std::string longest(512, 'x');
  EXPECT_EQ(call("POST", "/v1/responses", R"({"input": "x", "metadata": {"a": ")" + longest + R"(x"}})")->status(), 400);
  const auto accepted = call("POST", "/v1/responses",
                             R"({"input": "x", "max_output_tokens": 1, "n": 1, "echo": false, "state_ttl": 5,
                                                          "metadata": {"a": ")" +
                                 longest + R"("}})");
  EXPECT_EQ(accepted->status(), 200) << accepted->body();
  const auto unknown = call("POST", "/v1/responses", R"({"input": "x", "previous_response_id": "resp_1"})");
  EXPECT_EQ(unknown->status(), 404);
  EXPECT_THAT(unknown->body(), HasSubstr("resp_1"));
}

// However small --max-body-bytes is, the routes of states accept a state of this model, also sealed.
TEST_F(StateServer, TheBodyLimitFollowsFromTheModelsState) {
  HttpServerOptions http;
  http.max_body_bytes = 100;
  const StateContext small{server_->context(), server_->text_model(), *seal_, state_body_bytes(server_->model(), RequestLimits(), http)};
  HttpRouter router;
  add_state_routes(router, small);
  add_response_routes(router, small);
  const std::string id = ok("POST", "/v1/states", R"({"prompt": "The document. "})")["id"];
  const auto file = static_cast<int64_t>(call("GET", "/v1/states/" + id + "/content")->body().size());
  const Json sealed =
      ok("POST", "/v1/responses", R"({"input": "a", "store": false, "include": ["reasoning.encrypted_content"], "max_output_tokens": 2})");
  int64_t encrypted = 0;
  for (const Json& item : sealed["output"])
    if (item.contains("encrypted_content")) encrypted = std::ssize(item["encrypted_content"].get<std::string>());
  EXPECT_GT(encrypted, file);
  EXPECT_GE(router.find("PUT", "/v1/states").max_body_bytes, file);
  EXPECT_GE(router.find("POST", "/v1/responses").max_body_bytes, encrypted);
  EXPECT_EQ(router.find("POST", "/v1/states").max_body_bytes, -1);
  http.max_total_body_bytes = 1000;
  EXPECT_EQ(state_body_bytes(server_->model(), RequestLimits(), http), 1000);
}

}  // namespace endpoints_test
}  // namespace based
