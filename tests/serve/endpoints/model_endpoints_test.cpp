#include "based/serve/endpoints/model_endpoints.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <future>
#include <thread>

#include "tests/serve/endpoints/recorded_reply.h"

namespace based {
namespace model_endpoints_test {

TEST(ModelEndpoints, NeedNoKeyAndAreAtTheRoot) {
  ServerWithoutNetwork server;
  EXPECT_EQ(server.post("/tokenize", R"({"prompt": "<|endoftext|>", "add_special_tokens": false})")->json()["tokens"], Json::array({256}));
  EXPECT_EQ(server.post("/detokenize", R"({"tokens": [97, 98]})")->json()["prompt"], "ab");
  EXPECT_EQ(server.start("GET", "/tokenizer_info")->json()["eos_token"], "<|endoftext|>");
  EXPECT_EQ(server.start("GET", "/v1/models")->json()["data"][0]["id"], "tiny");
  EXPECT_EQ(server.start("GET", "/v1/models/tiny")->json()["id"], "tiny");
  EXPECT_EQ(server.start("GET", "/v1/models/other")->status(), 404);
  for (const auto& [method, path] : std::vector<std::pair<const char*, const char*>>{
           {"POST", "/tokenize"}, {"POST", "/detokenize"}, {"GET", "/tokenizer_info"}, {"GET", "/v1/models"}})
    EXPECT_EQ(server.router().find(method, path).access, Access::everybody) << path;
  EXPECT_EQ(server.router().find("POST", "/v1/completions").access, Access::with_key);
}

TEST(TaskQueue, QueuesWhatAThreadCollectsAtOnce) {
  std::atomic<int> ran{0};
  {
    TaskQueue queue(2);
    TaskSequence tasks(queue);
    std::vector<int> order;
    queue.collect();
    for (int i = 0; i < 50; ++i)
      tasks.post([&, i] {
        order.push_back(i);
        ++ran;
      });
    std::promise<void> other;
    std::thread([&] { queue.post([&] { other.set_value(); }); }).join();
    other.get_future().wait();  // other threads' tasks are not collected
    EXPECT_EQ(ran, 0);
    queue.flush();
    std::promise<void> last;
    tasks.post([&] { last.set_value(); });
    last.get_future().wait();
    EXPECT_EQ(ran, 50);
    EXPECT_TRUE(std::is_sorted(order.begin(), order.end()));
    queue.collect();
    queue.post([&] { ++ran; });
    queue.flush();
  }
  EXPECT_EQ(ran, 51);
}

TEST(TaskSequence, RunsItsTasksInOrderAndOneAtATime) {
  std::vector<int> order;
  std::atomic<int> running{0}, together{0};
  {
    TaskQueue queue(4);
    TaskSequence tasks(queue), other(queue);
    for (int i = 0; i < 500; ++i) {
      tasks.post([&, i] {
        if (++running > 1) ++together;
        order.push_back(i);
        --running;
      });
      other.post([] {});
    }
  }
  ASSERT_EQ(order.size(), 500u) << "the queue's end runs what was posted";
  EXPECT_EQ(together, 0);
  for (int i = 0; i < 500; ++i) EXPECT_EQ(order[static_cast<size_t>(i)], i);
}

}  // namespace model_endpoints_test
}  // namespace based
