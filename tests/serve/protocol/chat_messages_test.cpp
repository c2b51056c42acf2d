#include "based/serve/protocol/chat_messages.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace based {
namespace chat_messages_test {

using ::testing::HasSubstr;
using ::testing::Not;

const ModelFacts kModel{"tiny", 257};
const ReplyHead kHead{"chatcmpl-1", 7, "tiny", "fp_1"};

ChatRequest parse(const std::string& text) { return parse_chat_request(parse_json(text, "request"), {}, kModel); }

std::string refused(const std::string& text) {
  try {
    parse(text);
  } catch (const ApiError& error) {
    return error.param() + ": " + error.code();
  }
  return "";
}

TEST(ChatRequest, KeepsRolesAndJoinsTextParts) {
  const ChatRequest request = parse(R"({"messages": [{"role": "system", "content": "s"}, {"role": "user", "name": "n",
      "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}], "max_completion_tokens": 5, "logprobs": true,
      "top_logprobs": 3, "n": 2, "chat_template_kwargs": {"style": "short"}, "add_generation_prompt": false})");
  EXPECT_EQ(dump_json(request.messages), R"([{"role":"system","content":"s"},{"role":"user","content":"ab","name":"n"}])");
  EXPECT_EQ(request.generation.max_tokens, 5);
  EXPECT_EQ(request.top_logprobs, 3);
  EXPECT_EQ(request.n, 2);
  EXPECT_EQ(request.template_variables["style"], "short");
  EXPECT_FALSE(request.add_generation_prompt);
  EXPECT_EQ(parse(R"({"messages": [{"role": "user", "content": "a"}]})").generation.max_tokens, RequestLimits().max_tokens);
}

TEST(ChatRequest, WrongMessagesAndOptionsAreRefused) {
  const std::string user = R"("messages": [{"role": "user", "content": "a"}])";
  for (const auto& [members, expected] : std::vector<std::pair<std::string, std::string>>{
           {R"("messages": [])", "messages: invalid_value"},
           {R"("messages": "a")", "messages: invalid_value"},
           {R"("messages": ["a"])", "messages[0]: invalid_value"},
           {R"("messages": [{"content": "a"}])", "messages[0].role: invalid_value"},
           {R"("messages": [{"role": "user", "content": 5}])", "messages[0].content: invalid_value"},
           {R"("messages": [{"role": "user", "content": [{"type": "image_url"}]}])", "messages[0].content: unsupported"},
           {R"("messages": [{"role": "assistant", "tool_calls": [{}]}])", "messages[0].tool_calls: unsupported"},
           {user + R"(, "tools": [{"type": "function"}])", "tools: unsupported"},
           {user + R"(, "prompt": "a")", "prompt: unsupported"},
           {user + R"(, "chat_template": "x")", "chat_template: unsupported"},
           {user + R"(, "top_logprobs": 1)", "top_logprobs: invalid_value"},
           {user + R"(, "logprobs": 1)", "logprobs: invalid_value"},
           {user + R"(, "max_tokens": 0)", "max_tokens: invalid_value"},
           {user + R"(, "state": ["st_1", "st_2"])", "state: invalid_value"}})
    EXPECT_EQ(refused("{" + members + "}"), expected) << members;
}

TEST(ChatReply, HasMessagesAndBytesOfTokens) {
  const ByteTokenizer tokenizer;
  ChatLogprobs logprobs(tokenizer, 2);
  logprobs.add({0xc3, true, -1, {{0xc3, -1}, {'a', -2}}});
  ChatChoice choice;
  choice.text = "é";
  choice.finish_reason = "stop";
  choice.logprobs = logprobs.take();
  EXPECT_TRUE(logprobs.empty());
  EXPECT_THAT(chat_reply(kHead, {choice}, {3, 2, 0}),
              HasSubstr(R"("choices":[{"index":0,"message":{"role":"assistant","content":"é","refusal":null},"logprobs":{"content":[)"
                        R"({"token":"bytes:\\xc3","bytes":[195],"logprob":-1.0,"top_logprobs":[)"
                        R"({"token":"bytes:\\xc3","bytes":[195],"logprob":-1.0},{"token":"a","bytes":[97],"logprob":-2.0}]}],)"
                        R"("refusal":null},"finish_reason":"stop"}],"usage":{)"));
}

TEST(ChatReply, AStreamBeginsWithTheRoleAndEndsWithTheReason) {
  ChatChoice choice;
  EXPECT_THAT(chat_chunk(kHead, choice, true, false), HasSubstr(R"("delta":{"role":"assistant","content":""},"logprobs":null,)"));
  choice.finish_reason = "length";
  const std::string last = chat_chunk(kHead, choice, false, true);
  EXPECT_THAT(last, HasSubstr(R"("object":"chat.completion.chunk")"));
  EXPECT_THAT(last, HasSubstr(R"("delta":{},"logprobs":null,"finish_reason":"length"}],"usage":null})"));
  EXPECT_THAT(chat_usage_chunk(kHead, {}), Not(HasSubstr("delta")));
}

}  // namespace chat_messages_test
}  // namespace based
