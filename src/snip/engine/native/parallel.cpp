// Two ways to run tasks: on torch's own OpenMP team (found at run time, see snip_use_team), or on
// a small pool of our own whose workers sleep. A second OpenMP runtime would spin against torch's.
#include "parallel.hpp"

#include <pthread.h>

#include <atomic>
#include <condition_variable>
#include <exception>
#include <mutex>
#include <thread>

#include "memory.hpp"

namespace snip {
namespace {

struct Job {
    int64_t tasks;
    Task run;
    void* context;
    std::thread::id caller = std::this_thread::get_id();
    std::atomic<int64_t> next{0};
    std::atomic<bool> failed{false};
    std::exception_ptr error;  // of the task that failed first

    // One thread's part. Nothing may be thrown through an OpenMP region or out of a thread.
    void work() noexcept {
        try {
            for (int64_t task; (task = next.fetch_add(1, std::memory_order_relaxed)) < tasks;)
                run(context, task);
        } catch (...) {
            next.store(tasks);  // no further task begins
            if (!failed.exchange(true)) error = std::current_exception();
        }
        // The caller may hold scratch memory until its kernel returns; the others are done with theirs.
        if (std::this_thread::get_id() != caller) trim_scratch();
    }
};

typedef void (*TeamBody)(void*);
typedef void (*Team)(TeamBody, void* data, unsigned threads, unsigned flags);  // GOMP_parallel
std::atomic<Team> team{nullptr};

// Workers wait on a condition variable. The pool is never destroyed: at exit the process takes the
// sleeping threads with it, and joining them from a static destructor can deadlock.
struct Pool {
    std::mutex running;  // one job at a time
    std::mutex mutex;
    std::condition_variable wake, done;
    Job* job = nullptr;
    uint64_t ticket = 0;  // number of the job, so that a worker takes each once
    int wanted = 0, busy = 0, workers = 0;

    void worker() {
        uint64_t seen = 0;
        std::unique_lock<std::mutex> lock(mutex);
        for (;;) {
            wake.wait(lock, [&] { return ticket != seen; });
            seen = ticket;
            if (wanted == 0) continue;
            wanted--;
            busy++;
            Job* mine = job;
            lock.unlock();
            mine->work();
            lock.lock();
            if (--busy == 0) done.notify_one();
        }
    }

    void run(Job& work, int helpers) {
        {
            std::lock_guard<std::mutex> lock(mutex);
            // Throws when the system has no thread left; nothing has begun yet then.
            for (; workers < helpers; workers++) std::thread([this] { worker(); }).detach();
            job = &work;
            wanted = helpers;
            ticket++;
        }
        wake.notify_all();
        work.work();
        std::unique_lock<std::mutex> lock(mutex);
        wanted = 0;  // whoever has not woken yet is not needed any more
        done.wait(lock, [&] { return busy == 0; });
        job = nullptr;
    }
};

std::atomic<Pool*> pool{nullptr};

// In a forked child neither the pool's threads nor OpenMP's exist: forget both (the old pool's
// memory is left alone, its locks may be held by threads that are gone) and start afresh.
void forget_threads() {
    team.store(nullptr);
    pool.store(new Pool);
}

Pool& the_pool() {
    static std::once_flag once;
    std::call_once(once, [] {
        pool.store(new Pool);
        pthread_atfork(nullptr, nullptr, forget_threads);
    });
    return *pool.load();
}

void run_on_threads(Job& job, int threads) {
    Pool& own = the_pool();
    if (Team parallel_region = team.load()) {
        // Always torch's full number: libgomp ends and restarts threads when a team's size changes.
        parallel_region([](void* j) { static_cast<Job*>(j)->work(); }, &job, static_cast<unsigned>(threads),
                        0);
        return;
    }
    std::unique_lock<std::mutex> lock(own.running, std::try_to_lock);
    if (lock.owns_lock())
        own.run(job, static_cast<int>(threads < job.tasks ? threads : job.tasks) - 1);
    else
        job.work();  // another Python thread has the pool: this one works alone
}

}  // namespace

void parallel_for(int64_t tasks, int threads, Task run, void* context) {
    if (threads <= 1 || tasks <= 1) {
        for (int64_t task = 0; task < tasks; task++) run(context, task);
        return;
    }
    Job job{tasks, run, context};
    run_on_threads(job, threads);
    if (job.error) std::rethrow_exception(job.error);
}

}  // namespace snip

// region is torch's GOMP_parallel (libgomp, and libiomp5 / libomp for compatibility), or null for
// our own pool. Taken as an address: linking to libgomp could load a second copy of it.
extern "C" void snip_use_team(snip::Team region) {
    snip::the_pool();
    snip::team.store(region);
}
