// Runs the program as a user does, in a shell or in the background.
#pragma once
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <csignal>
#include <cstdio>
#include <fstream>
#include <functional>
#include <string>
#include <vector>

#include "based/core/files.h"
#include "based/core/json.h"
#include "tests/core/temporary_folder.h"

namespace based {

struct Ran {
  int code = -1;
  std::string out, err;
};

// The command by which run() runs the program: a client of a fork server (tests/fork_server), which saves the loading of LibTorch, or the
// program itself where the two would differ.
std::string program_for(const std::string& before, const std::string& arguments);

// `arguments` may redirect streams. `before` is inserted before the program's name, for example "ulimit -f 8; ".
inline Ran run(const std::string& arguments, const std::string& before = "") {
  const TemporaryFolder folder;
  const std::string command = "{ " + before + program_for(before, arguments) + " " + arguments + "; } 2>" + folder.file("err");
  std::FILE* pipe = popen(command.c_str(), "r");
  Ran ran;
  std::array<char, 4096> buffer{};
  while (const size_t n = std::fread(buffer.data(), 1, buffer.size(), pipe)) ran.out.append(buffer.data(), n);
  ran.code = WEXITSTATUS(pclose(pipe));
  ran.err = read_file(folder.file("err"));
  return ran;
}

// The element of a JSON list with this "name". If there is none, the test fails and the result is empty.
inline Json element_named(const Json& list, const std::string& name) {
  for (const Json& element : list)
    if (element.at("name") == name) return element;
  ADD_FAILURE() << "there is no element '" << name << "'";
  return Json::object();
}

// Runs the program in the background with its streams redirected to files, so that a test can send signals.
class Started {
 public:
  // `before` is called in the child after its streams have been redirected. `program`: see program_for(); a client receives no signals.
  Started(std::vector<std::string> arguments, const std::string& out, const std::string& err, const std::function<void()>& before = {},
          const std::string& program = BASED_PROGRAM)
      : child_(fork()) {
    if (child_ != 0) return;
    arguments.insert(arguments.begin(), program);
    std::vector<char*> words;
    words.reserve(arguments.size() + 1);
    for (std::string& word : arguments) words.push_back(word.data());
    words.push_back(nullptr);
    if (!std::freopen(out.c_str(), "w", stdout) || !std::freopen(err.c_str(), "w", stderr)) _exit(127);
    if (before) before();
    execv(program.c_str(), words.data());
    _exit(127);
  }
  void signal(int number) const { ::kill(child_, number); }
  int status() const {  // waits for the program's end and returns its status, as waitpid
    int status = 0;
    waitpid(child_, &status, 0);
    return status;
  }
  // The same, but kills the program with SIGKILL if it has not ended after `seconds`.
  int status_within(int seconds) const {
    int status = 0;
    for (int waits = 0; waitpid(child_, &status, WNOHANG) == 0; usleep(2000)) {
      if (++waits == seconds * 500) signal(SIGKILL);
    }
    return status;
  }
  // Waits until the program has installed a handler for the signal; false if it ended before.
  bool catches(int number) const {
    const auto line_with = [this](const std::string& key) {
      std::ifstream status("/proc/" + std::to_string(child_) + "/status");
      for (std::string line; std::getline(status, line);)
        if (line.starts_with(key)) return line.substr(key.size());
      return std::string();
    };
    while (true) {
      const std::string caught = line_with("SigCgt:");
      if (caught.empty() || line_with("State:\t").starts_with('Z')) return false;
      if (std::stoull(caught, nullptr, 16) >> (number - 1) & 1) return true;
      usleep(1000);
    }
  }

 private:
  pid_t child_;
};

}  // namespace based
