// Files as Go programs use them: many goroutines, the runtime's own poller, walks, maps, locks, children.
package main

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"syscall"
)

func must(err error) {
	if err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
}

func make_one(i int) {
	name := fmt.Sprintf("folder%d/file%d", i%7, i)
	file, err := os.OpenFile(name, os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o640)
	must(err)
	wanted := bytes.Repeat([]byte{byte(i)}, i*10)
	_, err = file.Write(wanted)
	must(err)
	_, err = file.Seek(0, io.SeekStart)
	must(err)
	got, err := io.ReadAll(file)
	must(err)
	if !bytes.Equal(got, wanted) {
		fmt.Println("file", i, "is", len(got), "bytes")
		os.Exit(1)
	}
	must(file.Sync())
	must(file.Close())
	must(os.Rename(name, name+".done"))
}

func main() {
	for i := 0; i < 7; i++ {
		must(os.Mkdir(fmt.Sprintf("folder%d", i), 0o755))
	}
	var all sync.WaitGroup
	for worker := 0; worker < 16; worker++ {
		all.Add(1)
		go func() {
			defer all.Done()
			for i := worker; i < 800; i += 16 {
				make_one(i)
			}
		}()
	}
	all.Wait()
	count, sum := 0, int64(0)
	must(filepath.Walk(".", func(_ string, info os.FileInfo, err error) error {
		if err == nil && info.Mode().IsRegular() {
			count++
			sum += info.Size()
		}
		return err
	}))
	fmt.Println(count, sum)
	file, err := os.OpenFile("mapped", os.O_RDWR|os.O_CREATE, 0o644)
	must(err)
	must(file.Truncate(8192))
	mapped, err := syscall.Mmap(int(file.Fd()), 0, 8192, syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_SHARED)
	must(err)
	copy(mapped[4090:], "over the page")
	must(syscall.Flock(int(file.Fd()), syscall.LOCK_EX))
	must(syscall.Munmap(mapped))
	said, err := exec.Command("dd", "if=mapped", "bs=1", "skip=4090", "count=13", "status=none").Output()
	must(err)
	fmt.Println(string(said))
	appended, err := os.OpenFile("log", os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o644)
	must(err)
	child := exec.Command("sh", "-c", "echo child; echo child >&2")
	child.Stdout, child.Stderr = appended, appended
	fmt.Fprintln(appended, "parent")
	must(child.Run())
	fmt.Fprintln(appended, "parent")
	log, err := os.ReadFile("log")
	must(err)
	fmt.Print(string(log))
}
