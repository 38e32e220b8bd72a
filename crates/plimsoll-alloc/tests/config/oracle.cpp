// Asks PyTorch how it reads allocator settings. A line of input is "start STRING", for the environment of a new
// process, or "set STRING...", for strings applied one after another in a new process; each in hexadecimal ("-" is
// the empty one). A line of output answers it: a JSON list with the options after each string, or the first line
// of PyTorch's refusal. make.py builds and runs this.
#include <functional>
#include <iostream>
#include <sstream>
#include <string>
#include <type_traits>
#include <sys/wait.h>
#include <unistd.h>
#include <c10/util/env.h>
#include <c10/util/flat_hash_map.h>
#include <atomic>
#include <mutex>
#include <unordered_set>
#include <vector>
#define private public // reserves have no getter
#include <c10/core/AllocatorConfig.h>
#include <c10/cuda/CUDAAllocatorConfig.h>
#undef private

using Common = c10::CachingAllocator::AcceleratorAllocatorConfig;
using Device = c10::cuda::CUDACachingAllocator::CUDAAllocatorConfig;

static std::string quoted(const std::string& text) {
  std::string out = "\"";
  for (unsigned char c : text) {
    char escaped[8];
    if (c == '"' || c == '\\' || c < 32) out += (snprintf(escaped, 8, "\\u%04x", c), escaped);
    else out += c;
  }
  return out + '"';
}

static std::string number(double value) { // as a string: few JSON readers are exact to the last bit
  char text[40];
  return snprintf(text, 40, "\"%.17g\"", value), text;
}

static std::string shown(bool on) { return on ? "true" : "false"; }
static std::string shown(double value) { return number(value); }
static std::string shown(size_t value) { return std::to_string(value); }
static std::string shown(const std::string& json) { return json; }
template <class Divisions>
static std::string shown(const Divisions& divisions) {
  std::string out;
  for (auto d : divisions) out += (out.empty() ? "[" : ",") + std::to_string(d);
  return out + "]";
}

static std::string reserve_if_set(const Device& device) {
  const auto& spec = device.m_expandable_segments_reserve;
  if (!device.m_expandable_segments_reserve_set) return "null";
  return std::string("[\"") + (spec.is_fraction ? "fraction" : "gibibytes") + "\"," + number(spec.value) + "]";
}

static std::string values() {
  std::ostringstream out;
  out << "{";
#define OPTION(name, value) out << quoted(name) << ":" << shown(value) << ",";
#include "options.inc" // made by make.py: a line for each option
  out << "\"settings\":" << quoted(Common::last_allocator_settings()) << "}";
  return out.str();
}

static std::string said(const std::function<void()>& read) {
  try {
    read();
    return values();
  } catch (const c10::Error& e) {
    std::string what = e.what_without_backtrace();
    return quoted(what.substr(0, what.find('\n')));
  } catch (const std::exception& e) {
    return quoted(e.what());
  }
}

static std::string decoded(const std::string& word) {
  std::string text;
  for (size_t i = 0; word != "-" && i + 1 < word.size(); i += 2) text += char(std::stoi(word.substr(i, 2), nullptr, 16));
  return text;
}

static void answer(const std::string& line, const char* self) {
  std::istringstream words(line);
  std::string word, moment;
  words >> moment;
  if (moment == "start") {
    words >> word;
    setenv("PYTORCH_ALLOC_CONF", decoded(word).c_str(), 1);
    execl(self, self, "start", nullptr);
  }
  std::cout << "[";
  for (const char* comma = ""; words >> word; comma = ",")
    std::cout << comma << said([&] { c10::CachingAllocator::setAllocatorSettings(decoded(word)); });
  std::cout << "]" << std::endl;
}

int main(int count, char** arguments) {
  if (count == 2) {
    std::cout << "[" << said([] { Common::instance(), Device::instance(); }) << "]" << std::endl;
    _exit(0);
  }
  for (std::string line; std::getline(std::cin, line);) {
    if (pid_t child = fork()) {
      int status = 0;
      waitpid(child, &status, 0);
      if (status != 0) std::cout << "[\"died\"]" << std::endl;
    } else {
      answer(line, "/proc/self/exe");
      _exit(0);
    }
  }
}
