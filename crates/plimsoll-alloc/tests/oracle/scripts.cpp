// What PyTorch 2.15's allocator answers to scripts.txt's programs of captures, streams and given addresses: on stdin the
// programs (a line that begins with '=' says nothing and is dropped), on stdout the programs with the answers.
//
//   source ORACLE_DIR/repl/env.sh     (../shared/tools/oracle/repl/build.sh ORACLE_DIR)
//   S=ORACLE_DIR/venv/lib/python3*/site-packages
//   g++ -std=c++20 -O1 -w -rdynamic -I$S/torch/include -I$S/nvidia/cu13/include scripts.cpp -o scripts \
//     -L$S/torch/lib -lc10_cuda -lc10 -L$REPL -Wl,--no-as-needed -l:libcudart.so.13
//   LD_LIBRARY_PATH=$REPL_LD ./scripts < scripts.txt > new && mv new scripts.txt
//
// The device is ours here: addresses go up and never come again, and a capture is a list of nodes per stream.
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAStream.h>
#include <c10/cuda/PeerToPeerAccess.h>
#include <c10/core/AllocatorConfig.h>
#include <algorithm>
#include <iostream>
#include <map>
#include <set>
#include <sstream>
#include <sys/wait.h>
#include <unistd.h>
#undef cudaStreamGetCaptureInfo
#undef cudaGraphNodeGetDependencies
namespace c10::cuda::_internal { void setHasPrimaryContext(bool (*)(signed char)); }
namespace CA = c10::cuda::CUDACachingAllocator;
using namespace c10::cuda;

static const size_t GRAIN = 2 << 20, BASE = 0x500000000000;
static size_t handed_out = 0, used = 0, capacity = 256 << 20;
static std::map<void*, size_t> segments;
struct Capture { unsigned long long id; std::set<size_t> tail; };
static std::map<cudaStream_t, Capture> captured;                       // by stream
static std::vector<std::vector<cudaGraphNode_t>> nodes(1);             // what each depends on; named by number

extern "C" {
cudaError_t cudaMalloc(void** at, size_t bytes) {
  size_t taken = (bytes + GRAIN - 1) / GRAIN * GRAIN;
  if (used + taken > capacity) return cudaErrorMemoryAllocation;
  *at = (void*)(BASE + handed_out), segments[*at] = taken, handed_out += taken, used += taken;
  return cudaSuccess;
}
cudaError_t cudaFree(void* at) { if (at) used -= segments.at(at), segments.erase(at); return cudaSuccess; }
cudaError_t cudaStreamIsCapturing(cudaStream_t s, cudaStreamCaptureStatus* is) {
  *is = captured.count(s) ? cudaStreamCaptureStatusActive : cudaStreamCaptureStatusNone;
  return cudaSuccess;
}
cudaError_t cudaStreamGetCaptureInfo(cudaStream_t s, cudaStreamCaptureStatus* is, unsigned long long* id, cudaGraph_t* graph,
                                     const cudaGraphNode_t** tail, const cudaGraphEdgeData**, size_t* count) {
  static std::vector<cudaGraphNode_t> told;
  cudaStreamIsCapturing(s, is);
  if (*is == cudaStreamCaptureStatusNone) return cudaSuccess;
  auto& capture = captured[s];
  told.clear();
  for (size_t node : capture.tail) told.push_back((cudaGraphNode_t)node);
  if (id) *id = capture.id;
  if (graph) *graph = (cudaGraph_t)capture.id;
  if (tail) *tail = told.data();
  if (count) *count = told.size();
  return cudaSuccess;
}
cudaError_t cudaGraphNodeGetDependencies(cudaGraphNode_t node, cudaGraphNode_t* out, cudaGraphEdgeData*, size_t* count) {
  auto& before = nodes[(size_t)node];
  if (out) std::copy(before.begin(), before.end(), out);
  *count = before.size();
  return cudaSuccess;
}
}

static std::vector<CUDAStream> streams;
static int number(void* s) { for (size_t i = 0; i < streams.size(); i++) if (streams[i].stream() == s) return i; return -1; }

static const char* NAMES[] = {"alloc", "free_requested", "free_completed", "segment_alloc", "segment_free", "map", "unmap", "", "oom"};
/* The trace since the last call. Frees that complete together do so in a hash map's order: here sorted. */
static std::string news() {
  static size_t told = 0;
  auto trace = CA::snapshot({0, 0}, true).device_traces[0];
  std::vector<std::string> entries;
  size_t completed = 0;
  for (; told < trace.size(); told++) {
    auto& e = trace[told];
    if (e.action_ == 7) continue;
    std::ostringstream out;
    size_t at = e.action_ == 8 ? 0 : e.addr_ - BASE;
    out << " " << NAMES[e.action_] << " " << std::hex << at << std::dec << " " << e.size_ << " " << number(e.stream_) << " "
        << e.mempool_.first << "_" << e.mempool_.second << ";";
    entries.push_back(out.str());
    completed = e.action_ == 2 ? completed + 1 : 0;
    std::sort(entries.end() - completed, entries.end());
  }
  std::string all;
  for (auto& entry : entries) all += entry;
  return all;
}

static size_t bytes(std::string text) { return std::stoull(text) << (text.back() == 'M' ? 20 : text.back() == 'K' ? 10 : 0); }
struct Context : c10::GatheredContext {};

static void program(const std::vector<std::string>& lines) {
  _internal::setHasPrimaryContext([](signed char) { return true; });
  set_device(0), CA::init(1), c10::cuda::detail::init_p2p_access_cache(1);
  streams.push_back(getDefaultCUDAStream());
  for (int i = 0; i < 4; i++) streams.push_back(getStreamFromPool());
  CA::recordHistory(true, [] { return std::shared_ptr<c10::GatheredContext>(new Context); }, 1000000, CA::RecordContext::STATE, true, {});
  std::map<std::string, c10::DataPtr> live;
  unsigned long long captures = 0;
  for (auto& line : lines) {
    std::istringstream in(line);
    std::string op, name, text, at;
    unsigned long long a = 0, b = 0;
    int stream = 0, other = 0;
    in >> op;
    std::cout << line << "\n";
    std::string answer;
    try {
      if (op == "conf") in >> text, c10::CachingAllocator::setAllocatorSettings(text);
      else if (op == "a" || op == "at") {
        in >> name >> text >> stream;
        struct On { CUDAStream before = getCurrentCUDAStream(); ~On() { setCurrentCUDAStream(before); } } on;
        setCurrentCUDAStream(streams[stream]);
        if (op == "a") live[name] = CA::get()->allocate(bytes(text));
        else in >> at, live[name] = CA::allocateWithAddress(bytes(text), (void*)(BASE + std::stoull(at, 0, 16)));
      }
      else if (op == "f") in >> name, live.erase(name);
      else if (op == "rs") in >> name >> stream, CA::recordStream(live.at(name), streams[stream]);
      else if (op == "on") in >> stream, setCurrentCUDAStream(streams[stream]);
      else if (op == "begin") { // for the capture that a stream is in
        in >> a >> b >> stream;
        auto id = captured.at(streams[stream].stream()).id;
        CA::beginAllocateToPool(0, {a, b}, [id](cudaStream_t s) { return captured.count(s) && captured[s].id == id; });
      }
      else if (op == "end") in >> a >> b, CA::endAllocateToPool(0, {a, b});
      else if (op == "release") in >> a >> b, CA::releasePool(0, {a, b});
      else if (op == "unsplit") in >> a >> b, CA::setNoSplit(0, {a, b});
      else if (op == "empty") in >> a >> b, CA::emptyCache({a, b});
      else if (op == "mark") CA::markCaptureBegin(0);
      else if (op == "unmark") CA::markCaptureEnd(0);
      else if (op == "capture") in >> stream, captured[streams[stream].stream()] = {++captures, {}};
      else if (op == "endcapture") {
        in >> stream;
        auto id = captured.at(streams[stream].stream()).id;
        std::erase_if(captured, [&](auto& it) { return it.second.id == id; });
      }
      else if (op == "kernel") {
        in >> stream;
        auto it = captured.find(streams[stream].stream());
        if (it != captured.end()) {
          nodes.emplace_back();
          for (size_t node : it->second.tail) nodes.back().push_back((cudaGraphNode_t)node);
          it->second.tail = {nodes.size() - 1};
        }
      }
      else if (op == "wait") { // for what is on another stream now
        in >> stream >> other;
        auto it = captured.find(streams[other].stream());
        if (it != captured.end()) {
          auto theirs = it->second;
          auto& ours = captured[streams[stream].stream()];
          ours.id = theirs.id;
          ours.tail.insert(theirs.tail.begin(), theirs.tail.end());
        }
      }
      else if (op == "base") {
        in >> name;
        size_t size;
        auto at = (size_t)CA::getBaseAllocation(live.at(name).get(), &size);
        std::ostringstream out;
        out << " base " << std::hex << at - BASE << std::dec << " " << size << ";";
        answer = out.str();
      }
      else if (op == "largest") { size_t largest = 1; CA::cacheInfo(0, &largest); answer = " largest " + std::to_string(largest) + ";"; }
      else answer = " what?;";
    } catch (const std::exception& e) {
      std::string why = e.what();
      answer = why.find("exact address") != std::string::npos ? " not there;" : why.find("aligned") != std::string::npos ? " unaligned;"
             : why.find("out of memory") != std::string::npos ? " out of memory;" : " " + why.substr(0, why.find('\n')) + ";";
    }
    answer = news() + answer;
    std::cout << "=" << answer << std::endl;
  }
  _exit(0);
}

int main() {
  std::vector<std::string> lines;
  std::string line;
  auto run = [&] {
    if (lines.empty()) return;
    std::cout.flush();
    if (!fork()) program(lines);
    int status;
    wait(&status);
    if (status) std::cout << "= crashed" << std::endl;
    lines.clear();
  };
  while (std::getline(std::cin, line)) {
    if (line.empty() || line[0] == '#') run(), std::cout << line << "\n";
    else if (line[0] != '=') lines.push_back(line);
  }
  run();
}
