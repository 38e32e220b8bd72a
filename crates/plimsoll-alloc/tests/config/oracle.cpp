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

static std::string reserve(const c10::cuda::CUDACachingAllocator::ExpandableSegmentReserveSpec& spec) {
  return std::string("[\"") + (spec.is_fraction ? "fraction" : "gibibytes") + "\"," + number(spec.value) + "]";
}

static std::string values() {
  auto& device = Device::instance();
  std::ostringstream out;
  out << std::boolalpha << "{\"large_segment\":" << Common::large_segment_size() << ",\"max_split\":" << Common::max_split_size()
      << ",\"max_non_split_rounding\":" << Common::max_non_split_rounding_size()
      << ",\"gc\":" << number(Common::garbage_collection_threshold())
      << ",\"expandable\":" << Common::use_expandable_segments() << ",\"roundup\":[";
  const char* comma = "";
  for (auto d : Common::roundup_power2_divisions()) out << comma << d, comma = ",";
  out << "],\"background\":" << Common::pinned_use_background_threads()
      << ",\"round_threshold\":" << Common::pinned_max_round_threshold()
      << ",\"cached\":" << Common::pinned_max_cached_size() << ",\"release_lock\":" << Device::release_lock_on_cudamalloc()
      << ",\"capture_reuse\":" << Device::graph_capture_record_stream_reuse()
      << ",\"fraction\":" << number(Device::per_process_memory_fraction()) << ",\"throw\":" << Device::throw_on_cudamalloc_oom()
      << ",\"host_register\":" << Device::pinned_use_cuda_host_register()
      << ",\"register_threads\":" << Device::pinned_num_register_threads()
      << ",\"reserve_segment_mb\":" << Device::pinned_reserve_segment_size_mb()
      << ",\"catch_all\":" << Device::pinned_free_catch_all() << ",\"reserve\":"
      << (device.m_expandable_segments_reserve_set ? reserve(device.m_expandable_segments_reserve) : "null")
      << ",\"settings\":" << quoted(Common::last_allocator_settings()) << "}";
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
