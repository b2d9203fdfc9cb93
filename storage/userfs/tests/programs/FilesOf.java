import java.nio.ByteBuffer;
import java.nio.MappedByteBuffer;
import java.nio.channels.FileChannel;
import java.nio.channels.FileLock;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.StandardOpenOption;

/** Small files, a map, a lock and a copy by the kernel. */
public class FilesOf {
    public static void main(String[] arguments) throws Exception {
        Path folder = Files.createDirectory(Path.of("j"));
        long sum = 0;
        for (int i = 0; i < 200; i++) Files.writeString(folder.resolve("" + i), "" + i);
        for (int i = 0; i < 200; i++) sum += Long.parseLong(Files.readString(folder.resolve("" + i)));
        Path mapped = Path.of("mapped"), copied = Path.of("copied");
        var all = new StandardOpenOption[] {StandardOpenOption.CREATE, StandardOpenOption.READ, StandardOpenOption.WRITE};
        try (FileChannel from = FileChannel.open(mapped, all); FileChannel to = FileChannel.open(copied, all)) {
            MappedByteBuffer map = from.map(FileChannel.MapMode.READ_WRITE, 0, 1 << 16);
            map.putLong(4096, 7);
            map.force();
            ByteBuffer bytes = ByteBuffer.allocate(8);
            from.read(bytes, 4096);
            sum += bytes.flip().getLong();
            try (FileLock lock = from.lock()) {
                from.transferTo(0, from.size(), to);
            }
        }
        System.out.println(sum + " " + Files.mismatch(mapped, copied));
    }
}
