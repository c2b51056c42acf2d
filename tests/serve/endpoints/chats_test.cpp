#include "based/serve/endpoints/chats.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/serve/endpoints/recorded_reply.h"

namespace based {
namespace chats_test {

using ::testing::HasSubstr;

const std::string kTemplate =
    "{% for message in messages %}{{ message.role }}: {{ message.content }}{{ eos_token }}{% endfor %}"
    "{% if add_generation_prompt %}assistant:{% endif %}";
const std::string kUser = R"("messages": [{"role": "user", "content": "a"}], "max_tokens": 3, "logit_bias": {"120": 100})";

TEST(Chats, NeedATemplate) {
  ServerWithoutNetwork server;
  const auto reply = server.post("/v1/chat/completions", "{" + kUser + "}");
  EXPECT_EQ(reply->status(), 400);
  EXPECT_THAT(reply->json()["error"]["message"].get<std::string>(), HasSubstr("--template"));
}

TEST(Chats, ContinueTheTextOfTheTemplate) {
  ServerWithoutNetwork server({.name = "tiny", .chat_template = kTemplate, .chat_template_file = "chat.jinja"});
  const Json reply = server.post("/v1/chat/completions", "{" + kUser + R"(, "logprobs": true, "n": 2})")->json();
  ASSERT_EQ(reply["choices"].size(), 2u);
  EXPECT_EQ(reply["object"], "chat.completion");
  EXPECT_EQ(reply["choices"][1]["index"], 1);
  EXPECT_EQ(reply["choices"][1]["message"]["content"], "xxx");
  EXPECT_EQ(reply["choices"][1]["logprobs"]["content"].size(), 3u);
  EXPECT_EQ(reply["usage"]["prompt_tokens"], 18) << "\"user: a\", the end of text and \"assistant:\"";

  const auto stream = server.post("/v1/chat/completions", "{" + kUser + R"(, "stream": true})");
  const std::vector<std::string> events = stream->events();
  ASSERT_GE(events.size(), 3u);
  EXPECT_THAT(events.front(), HasSubstr(R"("delta":{"role":"assistant","content":""})"));
  EXPECT_THAT(events[events.size() - 2], HasSubstr(R"("finish_reason":"length")"));
  EXPECT_EQ(events.back(), "[DONE]");
  std::string text, id = parse_json(events.front(), "event")["id"];
  for (size_t i = 1; i + 1 < events.size(); ++i) {
    const Json chunk = parse_json(events[i], "event");
    EXPECT_EQ(chunk["id"], id);
    text += chunk["choices"][0]["delta"].value("content", "");
  }
  EXPECT_EQ(text, "xxx");
}

TEST(Chats, AreRefusedIfTheTemplateRefusesThem) {
  ServerWithoutNetwork server(
      {.name = "tiny", .chat_template = "{{ raise_exception('no system role') }}", .chat_template_file = "chat.jinja"});
  const auto reply = server.post("/v1/chat/completions", "{" + kUser + "}");
  EXPECT_EQ(reply->status(), 400);
  EXPECT_THAT(reply->json()["error"]["message"].get<std::string>(), HasSubstr("no system role"));
}

}  // namespace chats_test
}  // namespace based
